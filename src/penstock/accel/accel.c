/* The few pixel loops that no library offers: Pillow's resampling, bit for bit, in vectors; and uint8 HWC to float CHW by
 * table in one pass. Plain C without Python's API: loaded by ctypes, optional, see accel/__init__.py. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BITS 22 /* Pillow's PRECISION_BITS: 32 - 8 - 2 */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define VECTORS
#endif

static double bilinear(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

/* For each output position: where its input begins, how many there are, and their weights in fixed point. For vectors that
 * multiply words, and add two products, a weight is also split into a high and a low part, two neighbours in one number. */
#define LOW_BITS 11
struct weights {
    int taps, pairs;
    int *first, *count;
    int32_t *weight, *high, *low;
};

static void release(struct weights *w) {
    free(w->first);
    free(w->count);
    free(w->weight);
    free(w->high);
    free(w->low);
}

static void split(struct weights *w, int out) {
    for (int at = 0; at < out; at++)
        for (int pair = 0; pair < w->pairs; pair++) {
            const int32_t *k = w->weight + (size_t)at * w->taps + 2 * pair, one = k[0], two = 2 * pair + 1 < w->taps ? k[1] : 0;
            const size_t to = (size_t)at * w->pairs + pair;
            w->high[to] = (int32_t)((uint32_t)(two >> LOW_BITS) << 16 | ((one >> LOW_BITS) & 0xFFFF));
            w->low[to] = (int32_t)((uint32_t)(two & ((1 << LOW_BITS) - 1)) << 16 | (one & ((1 << LOW_BITS) - 1)));
        }
}

/* From `in` positions, of which those from `start` on, `span` of them, become `out`. */
static int prepare(struct weights *w, int in, double start, double span, int out, int cubic) {
    const double scale = span / out, wide = scale < 1.0 ? 1.0 : scale;
    const double support = (cubic ? 2.0 : 1.0) * wide, step = 1.0 / wide;
    w->taps = (int)ceil(support) * 2 + 1;
    w->pairs = (w->taps + 1) / 2;
    w->first = malloc(sizeof(int) * out);
    w->count = malloc(sizeof(int) * out);
    w->weight = calloc((size_t)out * w->taps, sizeof(int32_t));
    w->high = malloc((size_t)out * w->pairs * sizeof(int32_t));
    w->low = malloc((size_t)out * w->pairs * sizeof(int32_t));
    double *k = malloc(sizeof(double) * w->taps);
    if (!w->first || !w->count || !w->weight || !w->high || !w->low || !k) {
        free(k);
        return -1;
    }
    for (int at = 0; at < out; at++) {
        const double center = start + (at + 0.5) * scale;
        int low = (int)(center - support + 0.5), high = (int)(center + support + 0.5);
        if (low < 0) low = 0;
        if (high > in) high = in;
        double sum = 0.0;
        for (int x = 0; x < high - low; x++) {
            const double place = (x + low - center + 0.5) * step;
            k[x] = cubic ? bicubic(place) : bilinear(place);
            sum += k[x];
        }
        for (int x = 0; x < high - low; x++) {
            const double value = sum != 0.0 ? k[x] / sum : k[x];
            w->weight[(size_t)at * w->taps + x] = (int32_t)((value < 0 ? -0.5 : 0.5) + value * (1 << BITS));
        }
        w->first[at] = low;
        w->count[at] = high - low;
    }
    free(k);
    split(w, out);
    return 0;
}

static inline uint8_t clip(int32_t sum) {
    sum >>= BITS;
    return sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum;
}

/* What may be read behind the end of a row. */
#define BEHIND 8

/* Rows of three channels that are made wider at once. */
#define ROWS 4

static void across3_plain(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], int width, const struct weights *w) {
    for (int x = 0; x < width; x++) {
        const int32_t *k = w->weight + (size_t)x * w->taps;
        for (int i = 0; i < ROWS; i++) {
            const uint8_t *from = row[i] + 3 * (size_t)w->first[x];
            int32_t r = 1 << (BITS - 1), g = r, b = r;
            for (int tap = 0; tap < w->count[x]; tap++, from += 3) {
                r += from[0] * k[tap];
                g += from[1] * k[tap];
                b += from[2] * k[tap];
            }
            out[i][3 * x] = clip(r);
            out[i][3 * x + 1] = clip(g);
            out[i][3 * x + 2] = clip(b);
        }
    }
}

#ifdef __x86_64__
#include <immintrin.h>

#define HASWELL __attribute__((target("avx2")))
#define HASWELL_PART HASWELL static inline __attribute__((always_inline))

/* The sum, and of each two words of `x` and `k` beside each other the products: by one instruction where there is one for it. `dots` is
 * known when this is compiled; in assembly, since functions for other processors could not be made parts of each other. */
HASWELL_PART __m256i plus(__m256i sum, __m256i x, __m256i k, const int dots) {
    if (!dots) return _mm256_add_epi32(sum, _mm256_madd_epi16(x, k));
    __asm__("vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(k));
    return sum;
}

/* Eight bytes of one row, and of another. */
HASWELL_PART __m256i both(const uint8_t *one, const uint8_t *two) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)one)),
                                   _mm_loadl_epi64((const __m128i *)two), 1);
}

HASWELL_PART __m256i total(__m256i high, __m256i low) {
    const __m256i half = _mm256_set1_epi32(1 << (BITS - 1));
    return _mm256_srai_epi32(_mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS), low), half), BITS);
}

/* Column `x` of the result in four rows: in the lower half rows 0 and 2, in the upper one 1 and 3, four words each. */
HASWELL_PART __m256i column(const uint8_t *const row[ROWS], int x, const struct weights *w, const int dots) {
    /* Two pixels of three bytes to words: both reds, both greens, both blues. */
    const __m256i turn = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5,
                                          -1, -1, -1, -1, -1);
    const int32_t *high = w->high + (size_t)x * w->pairs, *low = w->low + (size_t)x * w->pairs;
    const size_t from = 3 * (size_t)w->first[x];
    const uint8_t *a = row[0] + from, *b = row[1] + from, *c = row[2] + from, *d = row[3] + from;
    __m256i h0 = _mm256_setzero_si256(), l0 = h0, h1 = h0, l1 = h0;
    for (int pair = 0; 2 * pair < w->count[x]; pair++, a += 6, b += 6, c += 6, d += 6) {
        const __m256i first = _mm256_shuffle_epi8(both(a, b), turn), second = _mm256_shuffle_epi8(both(c, d), turn);
        const __m256i kh = _mm256_set1_epi32(high[pair]), kl = _mm256_set1_epi32(low[pair]);
        h0 = plus(h0, first, kh, dots);
        l0 = plus(l0, first, kl, dots);
        h1 = plus(h1, second, kh, dots);
        l1 = plus(l1, second, kl, dots);
    }
    return _mm256_packs_epi32(total(h0, l0), total(h1, l1));
}

HASWELL_PART void across3_in_vectors(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], int width, const struct weights *w,
                                     const int dots) {
    const __m256i close = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13,
                                           14, -1, -1, -1, -1);
    int x = 0;
    for (; 3 * x + 16 <= 3 * width; x += 4) { /* sixteen bytes of which the last four are written again */
        /* Saturating packs clip; then four bytes of each row and column, which are brought together by rows. */
        const __m256 first = _mm256_castsi256_ps(_mm256_packus_epi16(column(row, x, w, dots), column(row, x + 1, w, dots)));
        const __m256 second = _mm256_castsi256_ps(_mm256_packus_epi16(column(row, x + 2, w, dots), column(row, x + 3, w, dots)));
        const __m256i upper = _mm256_shuffle_epi8(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0x88)), close);
        const __m256i lower = _mm256_shuffle_epi8(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xDD)), close);
        _mm_storeu_si128((__m128i *)(out[0] + 3 * x), _mm256_castsi256_si128(upper));
        _mm_storeu_si128((__m128i *)(out[1] + 3 * x), _mm256_extracti128_si256(upper, 1));
        _mm_storeu_si128((__m128i *)(out[2] + 3 * x), _mm256_castsi256_si128(lower));
        _mm_storeu_si128((__m128i *)(out[3] + 3 * x), _mm256_extracti128_si256(lower, 1));
    }
    for (; x < width; x++) {
        const __m256i words = column(row, x, w, dots), found = _mm256_packus_epi16(words, words);
        const uint32_t pixel[4] = {(uint32_t)_mm256_extract_epi32(found, 0), (uint32_t)_mm256_extract_epi32(found, 4),
                                   (uint32_t)_mm256_extract_epi32(found, 1), (uint32_t)_mm256_extract_epi32(found, 5)};
        for (int i = 0; i < 4; i++) memcpy(out[i] + 3 * x, pixel + i, 3);
    }
}

/* As many of the result's bytes as come in thirty-twos; how many that were. Rows two by two become words beside each other. */
HASWELL_PART int down_in_vectors(const uint8_t *rows, size_t stride, uint8_t *out, int length, const int32_t *high, const int32_t *low,
                                 int count, const int dots) {
    const __m256i none = _mm256_setzero_si256();
    int x = 0;
    for (; x + 32 <= length; x += 32) {
        __m256i h0 = none, h1 = none, h2 = none, h3 = none, l0 = none, l1 = none, l2 = none, l3 = none;
        for (int tap = 0; tap < count; tap += 2) {
            const uint8_t *at = rows + stride * tap + x;
            const __m256i one = _mm256_loadu_si256((const __m256i *)at);
            const __m256i two = _mm256_loadu_si256((const __m256i *)(tap + 1 < count ? at + stride : at)); /* whose weight is 0 */
            const __m256i left = _mm256_unpacklo_epi8(one, two), right = _mm256_unpackhi_epi8(one, two);
            const __m256i w0 = _mm256_unpacklo_epi8(left, none), w1 = _mm256_unpackhi_epi8(left, none);
            const __m256i w2 = _mm256_unpacklo_epi8(right, none), w3 = _mm256_unpackhi_epi8(right, none);
            const __m256i kh = _mm256_set1_epi32(high[tap / 2]), kl = _mm256_set1_epi32(low[tap / 2]);
            h0 = plus(h0, w0, kh, dots), l0 = plus(l0, w0, kl, dots);
            h1 = plus(h1, w1, kh, dots), l1 = plus(l1, w1, kl, dots);
            h2 = plus(h2, w2, kh, dots), l2 = plus(l2, w2, kl, dots);
            h3 = plus(h3, w3, kh, dots), l3 = plus(l3, w3, kl, dots);
        }
        const __m256i first = _mm256_packs_epi32(total(h0, l0), total(h1, l1)), second = _mm256_packs_epi32(total(h2, l2), total(h3, l3));
        _mm256_storeu_si256((__m256i *)(out + x), _mm256_packus_epi16(first, second));
    }
    return x;
}

HASWELL static void across3_avx2(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], int width, const struct weights *w) {
    across3_in_vectors(row, out, width, w, 0);
}

HASWELL static void across3_dots(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], int width, const struct weights *w) {
    across3_in_vectors(row, out, width, w, 1);
}

HASWELL static int down_avx2(const uint8_t *rows, size_t stride, uint8_t *out, int length, const int32_t *high, const int32_t *low,
                             int count) {
    return down_in_vectors(rows, stride, out, length, high, low, count, 0);
}

HASWELL static int down_dots(const uint8_t *rows, size_t stride, uint8_t *out, int length, const int32_t *high, const int32_t *low,
                             int count) {
    return down_in_vectors(rows, stride, out, length, high, low, count, 1);
}
#endif

enum { PLAIN, AVX2, WIDE, DOTS }; /* as in ops.c */

/* What the processor has. */
static int processors_vectors(void) {
#ifdef __x86_64__
    if (!__builtin_cpu_supports("avx2")) return PLAIN;
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl")) return AVX2;
    return __builtin_cpu_supports("avx512vnni") ? DOTS : WIDE;
#else
    return PLAIN;
#endif
}

static int vectors = -1;

/* Use no more than these; what will be used. For tests: each processor has its own way, and all must come to the same. */
int penstock_vectors(int most) {
    const int all = processors_vectors();
    vectors = most < all ? most : all;
    return vectors;
}

/* Whether to use these. */
int penstock_uses(int which) { return (vectors < 0 ? penstock_vectors(DOTS) : vectors) >= which; }

static void across3(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], int width, const struct weights *w) {
#ifdef __x86_64__
    if (penstock_uses(DOTS)) {
        across3_dots(row, out, width, w);
        return;
    }
    if (penstock_uses(AVX2)) {
        across3_avx2(row, out, width, w);
        return;
    }
#endif
    across3_plain(row, out, width, w);
}

VECTORS static void across1(const uint8_t *row, uint8_t *out, int width, const struct weights *w) {
    for (int x = 0; x < width; x++) {
        const int32_t *k = w->weight + (size_t)x * w->taps;
        int32_t sum = 1 << (BITS - 1);
        for (int tap = 0; tap < w->count[x]; tap++) sum += row[w->first[x] + tap] * k[tap];
        out[x] = clip(sum);
    }
}

/* One row of the result from the rows above each other. */
VECTORS static void down_plain(const uint8_t *rows, size_t stride, uint8_t *out, int length, const int32_t *k, int count,
                               int32_t *sum) {
    for (int i = 0; i < length; i++) sum[i] = 1 << (BITS - 1);
    for (int tap = 0; tap < count; tap++) {
        const uint8_t *row = rows + stride * tap;
        const int32_t weight = k[tap];
        for (int i = 0; i < length; i++) sum[i] += row[i] * weight;
    }
    for (int i = 0; i < length; i++) out[i] = clip(sum[i]);
}

static void down(const uint8_t *rows, size_t stride, uint8_t *out, int length, const struct weights *w, int at, int32_t *sum) {
    int done = 0;
#ifdef __x86_64__
    const int32_t *high = w->high + (size_t)at * w->pairs, *low = w->low + (size_t)at * w->pairs;
    if (penstock_uses(AVX2)) done = (penstock_uses(DOTS) ? down_dots : down_avx2)(rows, stride, out, length, high, low, w->count[at]);
#endif
    down_plain(rows + done, stride, out + done, length - done, w->weight + (size_t)at * w->taps, w->count[at], sum);
}

/* All rows of `from` made `width` wide. */
static int wider(const uint8_t *from, size_t stride, int channels, int height, int old_width, const double *box, uint8_t *to, int width,
                 int cubic) {
    struct weights w = {0};
    const size_t length = (size_t)width * channels, old = (size_t)old_width * channels;
    uint8_t *padded = malloc(ROWS * (old + BEHIND)), *unused = malloc(length);
    int failed = !padded || !unused || prepare(&w, old_width, box[1], box[3], width, cubic);
    if (!failed && channels == 1)
        for (int row = 0; row < height; row++) across1(from + stride * row, to + length * row, width, &w);
    for (int row = 0; !failed && channels == 3 && row < height; row += ROWS) {
        const uint8_t *rows[ROWS];
        uint8_t *out[ROWS];
        for (int i = 0; i < ROWS; i++) {
            const int at = row + i < height ? row + i : height - 1;
            rows[i] = from + stride * at;
            out[i] = row + i < height ? to + length * at : unused;
            if (stride * (height - 1 - at) < BEHIND) { /* the bytes behind the last row may not be ours */
                uint8_t *copy = padded + i * (old + BEHIND);
                memcpy(copy, from + stride * at, old);
                memset(copy + old, 0, BEHIND);
                rows[i] = copy;
            }
        }
        across3(rows, out, width, &w);
    }
    release(&w);
    free(padded);
    free(unused);
    return failed ? -1 : 0;
}

/* All columns of `from`, rows of `length` bytes, made `height` high. */
static int higher(const uint8_t *from, size_t stride, size_t length, int old_height, const double *box, uint8_t *to, int height,
                  int cubic) {
    struct weights w = {0};
    int32_t *sum = malloc(sizeof(int32_t) * length);
    int failed = !sum || prepare(&w, old_height, box[0], box[2], height, cubic);
    for (int row = 0; !failed && row < height; row++)
        down(from + stride * w.first[row], stride, to + length * row, (int)length, &w, row, sum);
    release(&w);
    free(sum);
    return failed ? -1 : 0;
}

/* Resize the box (top, left, height, width) of an image of 1 or 3 interleaved channels into `out`, without gaps; first in the direction
 * that `down_first` says. 0, or -1: no memory. */
int penstock_resize(const uint8_t *image, long stride, int channels, int height, int width, const double *box, uint8_t *out,
                    int new_height, int new_width, int cubic, int down_first) {
    const size_t old = (size_t)width * channels, length = (size_t)new_width * channels;
    if (width == new_width && box[3] == width) return higher(image, stride, length, height, box, out, new_height, cubic);
    if (height == new_height && box[2] == height) return wider(image, stride, channels, height, width, box, out, new_width, cubic);
    uint8_t *middle = malloc(down_first ? old * new_height : length * height);
    int failed = !middle;
    if (!failed && down_first)
        failed = higher(image, stride, old, height, box, middle, new_height, cubic) ||
                 wider(middle, old, channels, new_height, width, box, out, new_width, cubic);
    else if (!failed)
        failed = wider(image, stride, channels, height, width, box, middle, new_width, cubic) ||
                 higher(middle, length, length, height, box, out, new_height, cubic);
    free(middle);
    return failed ? -1 : 0;
}

/* uint8, interleaved, to floats in planes, by a table of 256 values for each channel. */
void penstock_planes(const uint8_t *image, long stride, int channels, int height, int width, float *out, const float *table) {
    const size_t plane = (size_t)height * width;
    for (int row = 0; row < height; row++) {
        const uint8_t *from = image + (size_t)stride * row;
        float *to = out + (size_t)row * width;
        for (int x = 0; x < width; x++)
            for (int c = 0; c < channels; c++) to[x + c * plane] = table[256 * c + *from++];
    }
}

static inline __attribute__((always_inline)) float normal(uint8_t value, float scale, int divides, float mean, float std) {
    return ((divides ? (float)value / scale : (float)value * scale) - mean) / std;
}

static inline __attribute__((always_inline)) void normal_row(const uint8_t *from, int width, float *r, float *g, float *b,
                                                            const float *n, int divides) {
    for (int x = 0; x < width; x++) {
        r[x] = normal(from[3 * x], n[0], divides, n[1], n[4]);
        g[x] = normal(from[3 * x + 1], n[0], divides, n[2], n[5]);
        b[x] = normal(from[3 * x + 2], n[0], divides, n[3], n[6]);
    }
}

/* The same for three channels, by arithmetic in the place of a table: times (or divided by) a scale, minus mean, divided by std;
 * `numbers` are the scale, three means, three stds. Each step is rounded, as where arrays are changed step by step. */
VECTORS void penstock_normal(const uint8_t *image, long stride, int height, int width, float *restrict out, const float *numbers,
                             int divides) {
    const size_t plane = (size_t)height * width;
    for (int row = 0; row < height; row++) {
        const uint8_t *from = image + (size_t)stride * row;
        float *r = out + (size_t)row * width, *g = r + plane, *b = g + plane;
        if (divides)
            normal_row(from, width, r, g, b, numbers, 1);
        else
            normal_row(from, width, r, g, b, numbers, 0);
    }
}
