/* The parts of ops.c in Arm's vectors of 16 bytes: what ops_plain.h has, done. */

#include <arm_neon.h>

INLINE uint8x16x4_t fourth_of(const uint8_t *table) { /* in one instruction only for newer compilers */
    const uint8x16x4_t found = {{vld1q_u8(table), vld1q_u8(table + 16), vld1q_u8(table + 32), vld1q_u8(table + 48)}};
    return found;
}

/* As many as come in sixteens; `out` may be where they come from. A fourth of the table is looked up at a time, with 0 for
 * places beyond it. */
static long look_up_sixteens(const uint8_t *from, long count, const uint8_t *table, uint8_t *out) {
    const uint8x16x4_t first = fourth_of(table), second = fourth_of(table + 64);
    const uint8x16x4_t third = fourth_of(table + 128), fourth = fourth_of(table + 192);
    long i = 0;
    for (; i + 16 <= count; i += 16) {
        const uint8x16_t values = vld1q_u8(from + i);
        const uint8x16_t one = vqtbl4q_u8(first, values), two = vqtbl4q_u8(second, veorq_u8(values, vdupq_n_u8(64)));
        const uint8x16_t three = vqtbl4q_u8(third, veorq_u8(values, vdupq_n_u8(128)));
        const uint8x16_t four = vqtbl4q_u8(fourth, veorq_u8(values, vdupq_n_u8(192)));
        vst1q_u8(out + i, vorrq_u8(vorrq_u8(one, two), vorrq_u8(three, four)));
    }
    return i;
}

static long look_up_some(const uint8_t *image, long count, const uint8_t *table, uint8_t *restrict out) {
    return penstock_uses(NEON) ? look_up_sixteens(image, count, table, out) : 0;
}

#define TOGETHER 256

/* A table takes half of the registers: so one channel after the other of some pixels. */
static long look_up3_some(const uint8_t *image, long count, const uint8_t tables[3][256], uint8_t *restrict out) {
    if (!penstock_uses(NEON)) return 0;
    uint8_t channels[3][TOGETHER];
    const long pixels = count / 3 / 16 * 16;
    for (long at = 0; at < pixels; at += TOGETHER) {
        const long some = pixels - at < TOGETHER ? pixels - at : TOGETHER;
        for (long i = 0; i < some; i += 16) {
            const uint8x16x3_t three = vld3q_u8(image + 3 * (at + i));
            for (int c = 0; c < 3; c++) vst1q_u8(channels[c] + i, three.val[c]);
        }
        for (int c = 0; c < 3; c++) look_up_sixteens(channels[c], some, tables[c], channels[c]);
        for (long i = 0; i < some; i += 16) {
            const uint8x16x3_t three = {{vld1q_u8(channels[0] + i), vld1q_u8(channels[1] + i), vld1q_u8(channels[2] + i)}};
            vst3q_u8(out + 3 * (at + i), three);
        }
    }
    return 3 * pixels;
}

/* Eight blends in words, as `mixed`: a conversion cuts towards 0, and gives 0 for what is negative. What is above 255 stays so. */
static inline uint16x8_t mixed_words(uint16x8_t from, uint16x8_t to, float32x4_t share) {
    const int16x8_t apart = vreinterpretq_s16_u16(vsubq_u16(to, from));
    const float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(apart))), high = vcvtq_f32_s32(vmovl_high_s16(apart));
    const float32x4_t first = vfmaq_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(from))), share, low);
    const float32x4_t second = vfmaq_f32(vcvtq_f32_u32(vmovl_high_u16(from)), share, high);
    return vqmovn_high_u32(vqmovn_u32(vcvtq_u32_f32(first)), vcvtq_u32_f32(second));
}

/* Pillow's grey of eight pixels. */
static inline uint16x8_t greys(uint16x8_t r, uint16x8_t g, uint16x8_t b) {
    uint32x4_t low = vmull_n_u16(vget_low_u16(r), 19595), high = vmull_high_n_u16(r, 19595);
    low = vmlal_n_u16(low, vget_low_u16(g), 38470), high = vmlal_high_n_u16(high, g, 38470);
    low = vmlal_n_u16(low, vget_low_u16(b), 7471), high = vmlal_high_n_u16(high, b, 7471);
    return vrshrn_high_n_u32(vrshrn_n_u32(low, 16), high, 16);
}

static int grey_sum_some(const uint8_t *from, int width, int64_t *sum) {
    if (!penstock_uses(NEON)) return 0;
    uint32x4_t sums = vdupq_n_u32(0);
    int x = 0;
    for (; x + 8 <= width; x += 8) {
        const uint8x8x3_t pixels = vld3_u8(from + 3 * (size_t)x);
        sums = vpadalq_u16(sums, greys(vmovl_u8(pixels.val[0]), vmovl_u8(pixels.val[1]), vmovl_u8(pixels.val[2])));
    }
    *sum += vaddlvq_u32(sums);
    return x;
}

static int saturate_some(const uint8_t *from, int width, float share, uint8_t *out) {
    if (!penstock_uses(NEON)) return 0;
    const float32x4_t by = vdupq_n_f32(share);
    int x = 0;
    for (; x + 8 <= width; x += 8) {
        const uint8x8x3_t pixels = vld3_u8(from + 3 * x);
        const uint16x8_t r = vmovl_u8(pixels.val[0]), g = vmovl_u8(pixels.val[1]), b = vmovl_u8(pixels.val[2]), level = greys(r, g, b);
        const uint8x8x3_t found = {{vqmovn_u16(mixed_words(level, r, by)), vqmovn_u16(mixed_words(level, g, by)),
                                    vqmovn_u16(mixed_words(level, b, by))}};
        vst3_u8(out + 3 * x, found);
    }
    return x;
}

static int sharpen_some(const uint8_t *at, const uint16_t *column, int x, int end, int channels, float share, uint8_t *restrict to) {
    if (!penstock_uses(NEON)) return x;
    const float32x4_t by = vdupq_n_f32(share);
    for (; x + 8 <= end; x += 8) {
        const uint16x8_t own = vmovl_u8(vld1_u8(at + x));
        uint16x8_t sum = vaddq_u16(vld1q_u16(column + x), vld1q_u16(column + x - channels));
        sum = vaddq_u16(vaddq_u16(sum, vld1q_u16(column + x + channels)), vaddq_u16(vshlq_n_u16(own, 2), vdupq_n_u16(6)));
        const uint16x4_t low = vshrn_n_u32(vmull_n_u16(vget_low_u16(sum), THIRTEENTH), 16);
        const uint16x8_t smooth = vshrn_high_n_u32(low, vmull_high_n_u16(sum, THIRTEENTH), 16);
        vst1_u8(to + x, vqmovn_u16(mixed_words(smooth, own, by)));
    }
    return x;
}

/* None: pixel by pixel it takes as long, since most of the time goes by until they are there. */
static int gather_some(const uint8_t *begin, int stride, int xx, int yy, int dx, int dy, int count, uint8_t *out) {
    (void)begin, (void)stride, (void)xx, (void)yy, (void)dx, (void)dy, (void)count, (void)out;
    return 0;
}
