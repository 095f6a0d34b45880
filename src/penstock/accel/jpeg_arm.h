/* The parts of jpeg.c that Arm's vectors make fast. */

#include <arm_neon.h>

/* What words are multiplied with, in lanes. */
static const int16_t FACTORS[16] = {4433, 4433 + 6270, 4433 - 15137, 9633, 9633 - 16069, 9633 - 3196, 2446 - 7373, -7373,
                                    12299 - 7373, 16819 - 20995, -20995, 25172 - 20995};
struct factors {
    int16x8_t even, odd;
};
#define TIMES(x, k, lane) vmull_laneq_s16(x, k, lane)
#define PLUS(sum, x, k, lane) vmlal_laneq_s16(sum, x, k, lane)

/* As `one_way` on four words each; the last four of which are 0 where there are `zeros`. The results have 32 bits, not yet shifted. */
INLINE void one_way_words(const int16x4_t v[8], int32x4_t out[8], struct factors f, const int zeros) {
    int32x4_t even0, even1, even2 = TIMES(v[2], f.even, 0), even3 = TIMES(v[2], f.even, 1), t0, t1, t2, t3;
    if (zeros) {
        even0 = even1 = vshll_n_s16(v[0], 13);
        const int32x4_t z3 = PLUS(TIMES(v[3], f.even, 4), v[1], f.even, 3), z4 = PLUS(TIMES(v[3], f.even, 3), v[1], f.even, 5);
        t0 = PLUS(z3, v[1], f.even, 7), t3 = PLUS(z4, v[1], f.odd, 0);
        t1 = PLUS(z4, v[3], f.odd, 2), t2 = PLUS(z3, v[3], f.odd, 3);
    } else {
        even0 = vshll_n_s16(vadd_s16(v[0], v[4]), 13), even1 = vshll_n_s16(vsub_s16(v[0], v[4]), 13);
        even2 = PLUS(even2, v[6], f.even, 2), even3 = PLUS(even3, v[6], f.even, 0);
        const int16x4_t v73 = vadd_s16(v[7], v[3]), v51 = vadd_s16(v[5], v[1]);
        const int32x4_t z3 = PLUS(TIMES(v73, f.even, 4), v51, f.even, 3), z4 = PLUS(TIMES(v73, f.even, 3), v51, f.even, 5);
        t0 = PLUS(PLUS(z3, v[7], f.even, 6), v[1], f.even, 7), t3 = PLUS(PLUS(z4, v[7], f.even, 7), v[1], f.odd, 0);
        t1 = PLUS(PLUS(z4, v[5], f.odd, 1), v[3], f.odd, 2), t2 = PLUS(PLUS(z3, v[5], f.odd, 2), v[3], f.odd, 3);
    }
    const int32x4_t a = vaddq_s32(even0, even3), d = vsubq_s32(even0, even3);
    const int32x4_t b = vaddq_s32(even1, even2), c = vsubq_s32(even1, even2);
    out[0] = vaddq_s32(a, t3), out[7] = vsubq_s32(a, t3);
    out[1] = vaddq_s32(b, t2), out[6] = vsubq_s32(b, t2);
    out[2] = vaddq_s32(c, t1), out[5] = vsubq_s32(c, t1);
    out[3] = vaddq_s32(d, t0), out[4] = vsubq_s32(d, t0);
}

/* Rows to columns. */
INLINE void turned(int16x8_t v[8]) {
    for (int i = 0; i < 8; i += 2) {
        const int16x8_t one = v[i], two = v[i + 1];
        v[i] = vtrn1q_s16(one, two), v[i + 1] = vtrn2q_s16(one, two);
    }
    for (int n = 0; n < 4; n++) {
        const int i = n + (n & 2);
        const int32x4_t one = vreinterpretq_s32_s16(v[i]), two = vreinterpretq_s32_s16(v[i + 2]);
        v[i] = vreinterpretq_s16_s32(vtrn1q_s32(one, two)), v[i + 2] = vreinterpretq_s16_s32(vtrn2q_s32(one, two));
    }
    for (int i = 0; i < 4; i++) {
        const int64x2_t one = vreinterpretq_s64_s16(v[i]), two = vreinterpretq_s64_s16(v[i + 4]);
        v[i] = vreinterpretq_s16_s64(vtrn1q_s64(one, two)), v[i + 4] = vreinterpretq_s16_s64(vtrn2q_s64(one, two));
    }
}

/* One direction, then words that are cut down to 16 bits where they have more: SANE tells. */
INLINE void first_way(int16x8_t v[8], struct factors f, const int zeros) {
    int32x4_t low[8], high[8];
    int16x4_t half[8];
    for (int i = 0; i < 8; i++) half[i] = vget_low_s16(v[i]);
    one_way_words(half, low, f, zeros);
    for (int i = 0; i < 8; i++) half[i] = vget_high_s16(v[i]);
    if (zeros) /* those in the upper half too */
        for (int i = 0; i < 8; i++) v[i] = vcombine_s16(vqrshrn_n_s32(low[i], 11), vdup_n_s16(0));
    else {
        one_way_words(half, high, f, zeros);
        for (int i = 0; i < 8; i++) v[i] = vqrshrn_high_n_s32(vqrshrn_n_s32(low[i], 11), high[i], 11);
    }
}

/* The other, to bytes: what is above their 18 bits is rounded as if all were there. */
INLINE void second_way(const int16x8_t v[8], uint8x8_t out[8], struct factors f, const int zeros) {
    int32x4_t low[8], high[8];
    int16x4_t half[8];
    for (int i = 0; i < 8; i++) half[i] = vget_low_s16(v[i]);
    one_way_words(half, low, f, zeros);
    for (int i = 0; i < 8; i++) half[i] = vget_high_s16(v[i]);
    one_way_words(half, high, f, zeros);
    for (int i = 0; i < 8; i++) {
        const int16x8_t words = vuzp2q_s16(vreinterpretq_s16_s32(low[i]), vreinterpretq_s16_s32(high[i]));
        out[i] = veor_u8(vreinterpret_u8_s8(vqrshrn_n_s16(words, 2)), vdup_n_u8(128));
    }
}

INLINE int insane_words(const int16x8_t v[8], int count) {
    uint16x8_t sizes = vdupq_n_u16(0);
    for (int i = 0; i < count; i++) sizes = vorrq_u16(sizes, vreinterpretq_u16_s16(vqabsq_s16(v[i])));
    return vmaxvq_u16(sizes) > SANE;
}

INLINE uint32_t inverse_neon_of(const int16_t *from, const int16_t *steps, uint8_t *to, size_t stride, const int zeros) {
    const struct factors f = {vld1q_s16(FACTORS), vld1q_s16(FACTORS + 8)};
    int16x8_t v[8];
    for (int row = 0; row < 8 - zeros; row++) {
        const int16x8_t x = vld1q_s16(from + 8 * row), q = vld1q_s16(steps + 8 * row);
        const int16x4_t low = vqmovn_s32(vmull_s16(vget_low_s16(x), vget_low_s16(q)));
        v[row] = zeros ? vcombine_s16(low, vdup_n_s16(0)) : vqmovn_high_s32(low, vmull_high_s16(x, q));
    }
    for (int row = 8 - zeros; row < 8; row++) v[row] = vdupq_n_s16(0);
    if (insane_words(v, 8 - zeros)) return 1;
    first_way(v, f, zeros);
    if (insane_words(v, 8)) return 1;
    turned(v);
    uint8x8_t out[8];
    second_way(v, out, f, zeros);
    /* Eight columns to rows. */
    for (int i = 0; i < 8; i += 2) {
        const uint8x8_t one = out[i], two = out[i + 1];
        out[i] = vtrn1_u8(one, two), out[i + 1] = vtrn2_u8(one, two);
    }
    for (int n = 0; n < 4; n++) {
        const int i = n + (n & 2);
        const uint16x4_t one = vreinterpret_u16_u8(out[i]), two = vreinterpret_u16_u8(out[i + 2]);
        out[i] = vreinterpret_u8_u16(vtrn1_u16(one, two)), out[i + 2] = vreinterpret_u8_u16(vtrn2_u16(one, two));
    }
    for (int i = 0; i < 4; i++) {
        const uint32x2_t one = vreinterpret_u32_u8(out[i]), two = vreinterpret_u32_u8(out[i + 4]);
        vst1_u8(to + stride * i, vreinterpret_u8_u32(vtrn1_u32(one, two)));
        vst1_u8(to + stride * (i + 4), vreinterpret_u8_u32(vtrn2_u32(one, two)));
    }
    return 0;
}

/* The first ten coefficients lie in the upper left quarter, and most blocks have no others. */
#define QUARTER 9

static uint32_t inverse_neon(const int16_t *from, const int16_t *steps, int last, uint8_t *to, size_t stride) {
    return last <= QUARTER ? inverse_neon_of(from, steps, to, stride, 4) : inverse_neon_of(from, steps, to, stride, 0);
}

/* (x * share + 0x8000) >> 16: twice that is cut off first, which leaves what decides. */
INLINE int16x8_t part(int16x8_t x, int16_t share) { return vrshrq_n_s16(vqdmulhq_n_s16(x, share), 1); }

struct pixels {
    uint8x8_t r, g, b;
};

INLINE struct pixels pixels_of(uint8x8_t y, uint8x8_t cb, uint8x8_t cr) {
    const int16x8_t light = vreinterpretq_s16_u16(vmovl_u8(y));
    const int16x8_t blue = vreinterpretq_s16_u16(vsubl_u8(cb, vdup_n_u8(128))), red = vreinterpretq_s16_u16(vsubl_u8(cr, vdup_n_u8(128)));
    const int32x4_t low = vmlal_n_s16(vmull_n_s16(vget_low_s16(blue), -22554), vget_low_s16(red), 18734); /* 65536 - 46802 */
    const int32x4_t high = vmlal_high_n_s16(vmull_high_n_s16(blue, -22554), red, 18734);
    const int16x8_t both = vrshrn_high_n_s32(vrshrn_n_s32(low, 16), high, 16), lit = vaddq_s16(light, red);
    return (struct pixels){vqmovun_s16(vaddq_s16(lit, part(red, 26345))), vqmovun_s16(vaddq_s16(light, vsubq_s16(both, red))),
                           vqmovun_s16(vaddq_s16(vaddq_s16(light, vaddq_s16(blue, blue)), part(blue, -14942)))};
}

static void colours_neon(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *out, int width) {
    int x = 0;
    for (; x + 16 <= width; x += 16) {
        const uint8x16_t light = vld1q_u8(y + x), blue = vld1q_u8(cb + x), red = vld1q_u8(cr + x);
        const struct pixels low = pixels_of(vget_low_u8(light), vget_low_u8(blue), vget_low_u8(red));
        const struct pixels high = pixels_of(vget_high_u8(light), vget_high_u8(blue), vget_high_u8(red));
        const uint8x16x3_t sixteen = {{vcombine_u8(low.r, high.r), vcombine_u8(low.g, high.g), vcombine_u8(low.b, high.b)}};
        vst3q_u8(out + 3 * x, sixteen);
    }
    colours_plain(y + x, cb + x, cr + x, out + 3 * x, width - x);
}
