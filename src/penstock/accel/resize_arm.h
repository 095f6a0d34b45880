/* The parts of resize.c in Arm's vectors of 16 bytes, for processors that add products of bytes: what resize_plain.h has, done.
 *
 * A weight is cut into its bytes. Four taps are one such product for each byte, and their sum is that of the highest byte, times 256 and that of
 * the next, and so on. Numbers run over at 32 bits, as weights below 0 do: the sum itself has no more. */

#include <arm_neon.h>

#define DOT __attribute__((target("arch=armv8.2-a+dotprod")))
#define DOT_PART DOT static inline __attribute__((always_inline))

struct arranged {
    int fours, bytes; /* fours of taps for each position; bytes of a weight that are not all 0 */
    uint8_t (*four)[16]; /* by bytes, from the lowest on; each of four taps */
};

static void forget(struct arranged *v) {
    if (v) free(v->four);
    free(v);
}

static struct arranged *arranged(const struct weights *w, int out, int across) {
    (void)across;
    struct arranged *v = penstock_uses(DOTS) ? malloc(sizeof *v) : NULL;
    if (!v) return NULL;
    int most = 1;
    for (int at = 0; at < out; at++) most = w->count[at] > most ? w->count[at] : most;
    *v = (struct arranged){.fours = (most + 3) / 4, .bytes = 3};
    v->four = calloc((size_t)out * v->fours, 16);
    if (!v->four) {
        forget(v);
        return NULL;
    }
    for (int at = 0; at < out; at++)
        for (int tap = 0; tap < w->count[at]; tap++) {
            const uint32_t weight = (uint32_t)w->weight[(size_t)at * w->taps + tap];
            for (int byte = 0; byte < 4; byte++)
                v->four[(size_t)at * v->fours + tap / 4][4 * byte + tap % 4] = (uint8_t)(weight >> (8 * byte));
            if (weight >> 24) v->bytes = 4;
        }
    return v;
}

#define HALF (1 << (BITS - 1))

/* The sum of four taps' products, of each of four places, and half of what is cut off from it later. */
DOT_PART uint32x4_t sum_of(uint8x16_t taps, uint8x16_t weights, const int bytes) {
    uint32x4_t sum = vdupq_n_u32(HALF >> 16);
    if (bytes == 4) sum = vaddq_u32(sum, vshlq_n_u32(vdotq_laneq_u32(vdupq_n_u32(0), taps, weights, 3), 8));
    sum = vshlq_n_u32(vdotq_laneq_u32(sum, taps, weights, 2), 8);
    sum = vshlq_n_u32(vdotq_laneq_u32(sum, taps, weights, 1), 8);
    return vdotq_laneq_u32(sum, taps, weights, 0);
}

/* And with the taps before them, whose sum has that half already. */
DOT_PART uint32x4_t added_to(uint32x4_t before, uint8x16_t taps, uint8x16_t weights, const int bytes) {
    return vaddq_u32(before, vsubq_u32(sum_of(taps, weights, bytes), vdupq_n_u32(HALF)));
}

/* Sixteen sums as bytes. */
DOT_PART uint8x16_t clipped(const uint32x4_t sum[4]) {
    int16x8_t words[2];
    for (int i = 0; i < 2; i++)
        words[i] = vshrn_high_n_s32(vshrn_n_s32(vreinterpretq_s32_u32(sum[2 * i]), 16), vreinterpretq_s32_u32(sum[2 * i + 1]), 16);
    return vqshrun_high_n_s16(vqshrun_n_s16(words[0], BITS - 16), words[1], BITS - 16);
}

/* What a pixel of the result is made of. */
struct taps {
    size_t from;
    int count;
    const uint8_t (*weights)[16];
    uint8x16_t first; /* of the weights */
};

DOT_PART struct taps taps_of(const struct weights *w, int x) {
    const uint8_t(*weights)[16] = w->arranged->four + (size_t)x * w->arranged->fours;
    return (struct taps){3 * (size_t)w->first[x], w->count[x], weights, vld1q_u8(weights[0])};
}

/* Its three channels, and a fourth that is none. */
DOT_PART uint32x4_t pixel(const uint8_t *row, struct taps taps, uint8x16_t turn, const int bytes, const int more) {
    const uint8_t *from = row + taps.from;
    uint32x4_t sum = sum_of(vqtbl1q_u8(vld1q_u8(from), turn), taps.first, bytes);
    for (int tap = 4; more && tap < taps.count; tap += 4)
        sum = added_to(sum, vqtbl1q_u8(vld1q_u8(from + 3 * tap), turn), vld1q_u8(taps.weights[tap / 4]), bytes);
    return sum;
}

DOT_PART void across3_of(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], int width, const struct weights *w, size_t next,
                         const int bytes, const int more) {
    /* Four pixels of three bytes: all reds, all greens, all blues. And back, without the fourth channel. */
    static const uint8_t TURN[16] = {0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, 255, 255, 255, 255};
    static const uint8_t CLOSE[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 255, 255, 255, 255};
    const uint8x16_t turn = vld1q_u8(TURN), close = vld1q_u8(CLOSE);
    int x = 0;
    for (; 3 * x + 16 <= 3 * width; x += 4) { /* sixteen bytes of which the last four are written again */
        const struct taps a = taps_of(w, x), b = taps_of(w, x + 1), c = taps_of(w, x + 2), d = taps_of(w, x + 3);
        for (int i = 0; i < ROWS; i++) {
            __builtin_prefetch(row[i] + a.from + next); /* what was kept long ago is in no cache */
            const uint32x4_t sum[4] = {pixel(row[i], a, turn, bytes, more), pixel(row[i], b, turn, bytes, more), pixel(row[i], c, turn, bytes, more),
                                       pixel(row[i], d, turn, bytes, more)};
            vst1q_u8(out[i] + 3 * x, vqtbl1q_u8(clipped(sum), close));
        }
    }
    for (; x < width; x++)
        for (int i = 0; i < ROWS; i++) {
            const uint32x4_t one = pixel(row[i], taps_of(w, x), turn, bytes, more), sum[4] = {one, one, one, one};
            uint8_t found[16];
            vst1q_u8(found, clipped(sum));
            memcpy(out[i] + 3 * x, found, 3);
        }
}

DOT static void across3_some(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], int width, const struct weights *w, size_t next) {
    if (w->arranged->bytes == 4)
        across3_of(row, out, width, w, next, 4, 1);
    else if (w->arranged->fours > 1)
        across3_of(row, out, width, w, next, 3, 1);
    else
        across3_of(row, out, width, w, next, 3, 0);
}

/* Where four rows begin. Of those that are not there the weight is 0, so any will do. */
struct four_rows {
    const uint8_t *a, *b, *c, *d;
};

DOT_PART struct four_rows four_rows(const uint8_t *at, size_t stride, int count) {
    return (struct four_rows){at, at + (count > 1 ? stride : 0), at + (count > 2 ? 2 * stride : 0), at + (count > 3 ? 3 * stride : 0)};
}

/* Sixteen columns of them: the four bytes of each beside each other. */
DOT_PART void together(struct four_rows row, int x, uint8x16_t taps[4]) {
    const uint8x16_t a = vld1q_u8(row.a + x), b = vld1q_u8(row.b + x), c = vld1q_u8(row.c + x), d = vld1q_u8(row.d + x);
    const uint16x8_t upper[2] = {vreinterpretq_u16_u8(vzip1q_u8(a, b)), vreinterpretq_u16_u8(vzip2q_u8(a, b))};
    const uint16x8_t lower[2] = {vreinterpretq_u16_u8(vzip1q_u8(c, d)), vreinterpretq_u16_u8(vzip2q_u8(c, d))};
    for (int i = 0; i < 2; i++) {
        taps[2 * i] = vreinterpretq_u8_u16(vzip1q_u16(upper[i], lower[i]));
        taps[2 * i + 1] = vreinterpretq_u8_u16(vzip2q_u16(upper[i], lower[i]));
    }
}

DOT_PART int down_of(const uint8_t *rows, size_t stride, uint8_t *out, int length, const struct weights *w, int at, const int bytes) {
    const int count = w->count[at];
    const uint8_t(*weights)[16] = w->arranged->four + (size_t)at * w->arranged->fours;
    const uint8x16_t first = vld1q_u8(weights[0]);
    const struct four_rows row = four_rows(rows, stride, count);
    int x = 0;
    for (; x + 16 <= length; x += 16) {
        uint8x16_t taps[4];
        uint32x4_t sum[4];
        together(row, x, taps);
        for (int i = 0; i < 4; i++) sum[i] = sum_of(taps[i], first, bytes);
        for (int tap = 4; tap < count; tap += 4) {
            together(four_rows(rows + stride * tap, stride, count - tap), x, taps);
            for (int i = 0; i < 4; i++) sum[i] = added_to(sum[i], taps[i], vld1q_u8(weights[tap / 4]), bytes);
        }
        vst1q_u8(out + x, clipped(sum));
    }
    return x;
}

DOT static int down_some(const uint8_t *rows, size_t stride, uint8_t *out, int length, const struct weights *w, int at) {
    return w->arranged->bytes == 3 ? down_of(rows, stride, out, length, w, at, 3) : down_of(rows, stride, out, length, w, at, 4);
}
