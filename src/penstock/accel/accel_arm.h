/* The parts of accel.c in Arm's vectors of 16 bytes. They divide slowly: a quotient is the product with the reciprocal, of which
 * there is a second number for what does not fit into the first. That is the true one but for rare numbers; whether there are such is tried with all
 * 256 values before. */

#include <arm_neon.h>
#include <math.h>

struct divisor {
    float32x4_t by, reciprocal, rest;
};

INLINE struct divisor divisor_of(float by) {
    const float reciprocal = 1.0f / by;
    return (struct divisor){vdupq_n_f32(by), vdupq_n_f32(reciprocal), vdupq_n_f32(fmaf(-reciprocal, by, 1.0f) / by)};
}

INLINE float32x4_t divided(float32x4_t x, struct divisor d) { return vfmaq_f32(vmulq_f32(x, d.rest), x, d.reciprocal); }

/* As `normal`, of four values in a channel. */
INLINE float32x4_t normals(uint32x4_t values, struct divisor scale, int divides, float32x4_t mean, struct divisor std) {
    const float32x4_t x = vcvtq_f32_u32(values);
    return divided(vsubq_f32(divides ? divided(x, scale) : vmulq_f32(x, scale.by), mean), std);
}

INLINE int divides_rightly(const float *n, int divides) {
    static const uint32_t FIRST[4] = {0, 1, 2, 3};
    uint32x4_t same = vdupq_n_u32(~0u);
    for (int c = 0; c < 3; c++)
        for (uint32_t i = 0; i < 256; i += 4) {
            const uint32x4_t values = vaddq_u32(vld1q_u32(FIRST), vdupq_n_u32(i));
            const float32x4_t x = vcvtq_f32_u32(values), scaled = divides ? vdivq_f32(x, vdupq_n_f32(n[0])) : vmulq_n_f32(x, n[0]);
            const float32x4_t exact = vdivq_f32(vsubq_f32(scaled, vdupq_n_f32(n[1 + c])), vdupq_n_f32(n[4 + c]));
            const float32x4_t quick = normals(values, divisor_of(n[0]), divides, vdupq_n_f32(n[1 + c]), divisor_of(n[4 + c]));
            same = vandq_u32(same, vceqq_u32(vreinterpretq_u32_f32(exact), vreinterpretq_u32_f32(quick)));
        }
    return vminvq_u32(same) != 0;
}

INLINE void sixteen_normals(uint8x16_t values, struct divisor scale, int divides, float32x4_t mean, struct divisor std, float *to) {
    const uint16x8_t low = vmovl_u8(vget_low_u8(values)), high = vmovl_high_u8(values);
    vst1q_f32(to, normals(vmovl_u16(vget_low_u16(low)), scale, divides, mean, std));
    vst1q_f32(to + 4, normals(vmovl_high_u16(low), scale, divides, mean, std));
    vst1q_f32(to + 8, normals(vmovl_u16(vget_low_u16(high)), scale, divides, mean, std));
    vst1q_f32(to + 12, normals(vmovl_high_u16(high), scale, divides, mean, std));
}

/* Of a row, as many pixels as come in sixteens; how many that were. */
INLINE int normal_some(const uint8_t *from, int width, float *const to[3], const float *n, int divides) {
    const struct divisor scale = divisor_of(n[0]), std[3] = {divisor_of(n[4]), divisor_of(n[5]), divisor_of(n[6])};
    const float32x4_t mean[3] = {vdupq_n_f32(n[1]), vdupq_n_f32(n[2]), vdupq_n_f32(n[3])};
    int x = 0;
    for (; x + 16 <= width; x += 16) {
        const uint8x16x3_t pixels = vld3q_u8(from + 3 * x);
        for (int c = 0; c < 3; c++)
            sixteen_normals(pixels.val[c], scale, divides, mean[c], std[c], to[c] + x);
    }
    return x;
}
