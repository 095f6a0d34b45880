/* Floats of large images, in vectors of 32 bytes, past the caches: nobody here reads them again, and they would drive out all else. A use of a
 * kept photo is a fifteenth faster by that. With a multiplication and an addition in one instruction, a quotient is as on Arm (accel_arm.h) the
 * product with the reciprocal and a second number for what does not fit into the first, where that was found to be the true one. */

#include <immintrin.h>
#include <math.h>

#define LARGE (1 << 16) /* floats that caches would have better uses for */
#define FUSED __attribute__((target("avx2,fma")))

struct divisor {
    __m256 by, reciprocal, rest;
};

FUSED static inline struct divisor divisor_of(float by) {
    const float reciprocal = 1.0f / by;
    return (struct divisor){_mm256_set1_ps(by), _mm256_set1_ps(reciprocal), _mm256_set1_ps(fmaf(-reciprocal, by, 1.0f) / by)};
}

FUSED static inline __m256 divided(__m256 x, struct divisor d) {
    return _mm256_fmadd_ps(x, d.reciprocal, _mm256_mul_ps(x, d.rest));
}

/* As `normal`, of eight values in a channel. */
FUSED static inline __m256 normals(__m256i values, struct divisor scale, int divides, __m256 mean, struct divisor std) {
    const __m256 x = _mm256_cvtepi32_ps(values);
    return divided(_mm256_sub_ps(divides ? divided(x, scale) : _mm256_mul_ps(x, scale.by), mean), std);
}

FUSED static int all_divide_rightly(const float *n, int divides) {
    __m256i same = _mm256_set1_epi32(-1);
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 256; i += 8) {
            const __m256i values = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(i));
            const __m256 x = _mm256_cvtepi32_ps(values), by = _mm256_set1_ps(n[0]), mean = _mm256_set1_ps(n[1 + c]);
            const __m256 scaled = divides ? _mm256_div_ps(x, by) : _mm256_mul_ps(x, by);
            const __m256 exact = _mm256_div_ps(_mm256_sub_ps(scaled, mean), _mm256_set1_ps(n[4 + c]));
            const __m256 quick = normals(values, divisor_of(n[0]), divides, mean, divisor_of(n[4 + c]));
            same = _mm256_and_si256(same, _mm256_cmpeq_epi32(_mm256_castps_si256(exact), _mm256_castps_si256(quick)));
        }
    return _mm256_movemask_epi8(same) == -1;
}

/* Channel `c` of sixteen pixels: of three times sixteen bytes, each third. */
FUSED static inline __m128i channel_of(const __m128i pixels[3], int c) {
    static const int8_t FROM[3][48] = {
        {0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5,
         8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13},
        {1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6,
         9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14},
        {2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7,
         10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15},
    };
    __m128i found = _mm_setzero_si128();
    for (int i = 0; i < 3; i++)
        found = _mm_or_si128(found, _mm_shuffle_epi8(pixels[i], _mm_loadu_si128((const __m128i *)(FROM[c] + 16 * i))));
    return found;
}

FUSED static void stream_normals(const uint8_t *image, long stride, int height, int width, float *out, const float *n, int divides) {
    const struct divisor scale = divisor_of(n[0]), std[3] = {divisor_of(n[4]), divisor_of(n[5]), divisor_of(n[6])};
    const __m256 mean[3] = {_mm256_set1_ps(n[1]), _mm256_set1_ps(n[2]), _mm256_set1_ps(n[3])};
    const size_t plane = (size_t)height * width;
    for (int row = 0; row < height; row++, out += width) {
        const uint8_t *from = image + (size_t)stride * row;
        for (int x = 0; x < width; x += 16, from += 48) {
            __m128i pixels[3];
            for (int i = 0; i < 3; i++) pixels[i] = _mm_loadu_si128((const __m128i *)(from + 16 * i));
            for (int c = 0; c < 3; c++) {
                const __m128i values = channel_of(pixels, c);
                const __m256i low = _mm256_cvtepu8_epi32(values), high = _mm256_cvtepu8_epi32(_mm_srli_si128(values, 8));
                _mm256_stream_ps(out + c * plane + x, normals(low, scale, divides, mean[c], std[c]));
                _mm256_stream_ps(out + c * plane + x + 8, normals(high, scale, divides, mean[c], std[c]));
            }
        }
    }
    _mm_sfence();
}

/* As `penstock_normal`, of a large image whose rows are all whole vectors; whether it was one. */
static int normal_streamed(const uint8_t *image, long stride, int height, int width, float *out, const float *numbers, int divides) {
    const int fits = (size_t)height * width >= LARGE / 3 && !(width & 15) && !((uintptr_t)out & 31);
    if (!fits || !penstock_uses(AVX2) || !__builtin_cpu_supports("fma") || !all_divide_rightly(numbers, divides)) return 0;
    if (divides)
        stream_normals(image, stride, height, width, out, numbers, 1);
    else
        stream_normals(image, stride, height, width, out, numbers, 0);
    return 1;
}
