/* The parts of jpeg.c that vectors of 32 bytes make fast, and what else Haswell has. */

#include <immintrin.h>

#define HASWELL __attribute__((target("avx2,bmi,bmi2,lzcnt")))

HASWELL static void chroma_avx2(const uint8_t *near, const uint8_t *far, int first, int count, int most, uint16_t *sums,
                                uint8_t *to) {
    chroma_row(near, far, first, count, most, sums, to);
}

/* The inverse transform of one block in vectors of 32 bytes; and of two in vectors of 64, which takes hardly longer. */

#define WIDTH(name) name##_avx2
#define TARGET HASWELL
#define BLOCKS 1
#define VECTOR __m256i
#define OP(name) _mm256_##name
#define BITS(name) _mm256_##name##256
#define NOTHING _mm256_setzero_si256()
#define LOAD(name, at) _mm256_loadu_si256((const __m256i *)(squares[0].name + (at)))
#define ANY(x, mask) (uint32_t)!_mm256_testz_si256(x, mask)
#define PLACED(x, order) _mm256_permute4x64_epi64(x, order)
#define LOWER(x, y) _mm256_permute2x128_si256(x, y, 0x20)
#define UPPER(x, y) _mm256_permute2x128_si256(x, y, 0x31)
#define BYTES(...) _mm256_setr_epi8(__VA_ARGS__, __VA_ARGS__)
#define HALF(x, n) x
#include "jpeg_x86_inverse.h"

#define WIDTH(name) name##_avx512
#define TARGET WITH_WIDE
#define BLOCKS 2
#define VECTOR __m512i
#define OP(name) _mm512_##name
#define BITS(name) _mm512_##name##512
#define NOTHING _mm512_setzero_si512()
#define LOAD(name, at) \
    _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(squares[0].name + (at)))), \
                       _mm256_loadu_si256((const __m256i *)(squares[1].name + (at))), 1)
#define ANY(x, mask) (uint32_t)(_mm512_test_epi32_mask(x, mask) != 0)
#define PLACED(x, order) _mm512_permutex_epi64(x, order)
#define LOWER(x, y) _mm512_permutex2var_epi64(x, _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), y)
#define UPPER(x, y) _mm512_permutex2var_epi64(x, _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), y)
#define BYTES(...) _mm512_broadcast_i32x4(_mm_setr_epi8(__VA_ARGS__))
#define HALF(x, n) ((n) ? _mm512_extracti64x4_epi64(x, 1) : _mm512_castsi512_si256(x))
#include "jpeg_x86_inverse.h"

WITH_WIDE static uint32_t inverse_two_avx512(const struct square *squares) { return squares_avx512(squares); }

HASWELL static uint32_t inverse_avx2(const int16_t *from, const int16_t *steps, int last, uint8_t *to, size_t stride) {
    (void)last;
    const struct square square = {from, steps, to, stride};
    return squares_avx2(&square);
}

/* (x * share + 0x8000) >> 16, in 16 bits. */
HASWELL static inline __m256i part(__m256i x, int share) {
    const __m256i twice = _mm256_mulhi_epi16(_mm256_add_epi16(x, x), _mm256_set1_epi16((short)share));
    return _mm256_srai_epi16(_mm256_add_epi16(twice, _mm256_set1_epi16(1)), 1);
}

HASWELL static inline __m128i bytes(__m256i words) {
    return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

HASWELL static void colours_avx2(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *out, int width) {
    const __m256i middle = _mm256_set1_epi16(128), half = _mm256_set1_epi32(0x8000);
    const __m256i shares = _mm256_set1_epi32((18734 << 16) | (-22554 & 0xFFFF)); /* of blue, and of red: 65536 - 46802 */
    const __m128i r0 = _mm_setr_epi8(0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5);
    const __m128i g0 = _mm_setr_epi8(-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1);
    const __m128i b0 = _mm_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1);
    const __m128i r1 = _mm_setr_epi8(-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1);
    const __m128i g1 = _mm_setr_epi8(5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10);
    const __m128i b1 = _mm_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1);
    const __m128i r2 = _mm_setr_epi8(-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1);
    const __m128i g2 = _mm_setr_epi8(-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1);
    const __m128i b2 = _mm_setr_epi8(10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15);
    int x = 0;
    for (; x + 16 <= width; x += 16) {
        const __m256i light = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(y + x)));
        const __m256i blue = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(cb + x))), middle);
        const __m256i red = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(cr + x))), middle);
        const __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(blue, red), shares);
        const __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(blue, red), shares);
        const __m256i both = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(low, half), 16),
                                                _mm256_srai_epi32(_mm256_add_epi32(high, half), 16));
        const __m128i r = bytes(_mm256_add_epi16(light, _mm256_add_epi16(red, part(red, 26345))));
        const __m128i g = bytes(_mm256_add_epi16(light, _mm256_sub_epi16(both, red)));
        const __m128i b = bytes(_mm256_add_epi16(light, _mm256_add_epi16(_mm256_add_epi16(blue, blue), part(blue, -14942))));
        __m128i *to = (__m128i *)(out + 3 * x);
        _mm_storeu_si128(to, _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(r, r0), _mm_shuffle_epi8(g, g0)), _mm_shuffle_epi8(b, b0)));
        _mm_storeu_si128(to + 1, _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(r, r1), _mm_shuffle_epi8(g, g1)), _mm_shuffle_epi8(b, b1)));
        _mm_storeu_si128(to + 2, _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(r, r2), _mm_shuffle_epi8(g, g2)), _mm_shuffle_epi8(b, b2)));
    }
    colours_plain(y + x, cb + x, cr + x, out + 3 * x, width - x);
}

/* As `part`, of thirty-two. */
WITH_PERMUTES static inline __m512i part_wide(__m512i x, int share) {
    const __m512i twice = _mm512_mulhi_epi16(_mm512_add_epi16(x, x), _mm512_set1_epi16((short)share));
    return _mm512_srai_epi16(_mm512_add_epi16(twice, _mm512_set1_epi16(1)), 1);
}

/* As `colours_avx2`, thirty-two pixels at once: packs leave red and green, and blue, in turns of eight, from which permutations take them. */
WITH_PERMUTES static void colours_avx512(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *out, int width) {
    const __m512i middle = _mm512_set1_epi16(128), half = _mm512_set1_epi32(0x8000);
    const __m512i shares = _mm512_set1_epi32((18734 << 16) | (-22554 & 0xFFFF));
    static const uint8_t FROM[96] = { /* red x at 16 * (x / 8) + x % 8, green eight behind it, blue 64 */
        0, 8, 64, 1, 9, 65, 2, 10, 66, 3, 11, 67, 4, 12, 68, 5, 13, 69, 6, 14, 70, 7, 15, 71, 16, 24, 80, 17, 25, 81, 18, 26, 82, 19, 27,
        83, 20, 28, 84, 21, 29, 85, 22, 30, 86, 23, 31, 87, 32, 40, 96, 33, 41, 97, 34, 42, 98, 35, 43, 99, 36, 44, 100, 37, 45, 101, 38,
        46, 102, 39, 47, 103, 48, 56, 112, 49, 57, 113, 50, 58, 114, 51, 59, 115, 52, 60, 116, 53, 61, 117, 54, 62, 118, 55, 63, 119};
    const __m512i first = _mm512_loadu_si512(FROM), second = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(FROM + 64)));
    int x = 0;
    for (; x + 32 <= width; x += 32) {
        const __m512i light = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(y + x)));
        const __m512i blue = _mm512_sub_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(cb + x))), middle);
        const __m512i red = _mm512_sub_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(cr + x))), middle);
        const __m512i low = _mm512_madd_epi16(_mm512_unpacklo_epi16(blue, red), shares);
        const __m512i high = _mm512_madd_epi16(_mm512_unpackhi_epi16(blue, red), shares);
        const __m512i both = _mm512_packs_epi32(_mm512_srai_epi32(_mm512_add_epi32(low, half), 16),
                                                _mm512_srai_epi32(_mm512_add_epi32(high, half), 16));
        const __m512i r = _mm512_add_epi16(light, _mm512_add_epi16(red, part_wide(red, 26345)));
        const __m512i g = _mm512_add_epi16(light, _mm512_sub_epi16(both, red));
        const __m512i b = _mm512_add_epi16(light, _mm512_add_epi16(_mm512_add_epi16(blue, blue), part_wide(blue, -14942)));
        const __m512i two = _mm512_packus_epi16(r, g), one = _mm512_packus_epi16(b, b);
        _mm512_storeu_si512(out + 3 * x, _mm512_permutex2var_epi8(two, first, one));
        _mm256_storeu_si256((__m256i *)(out + 3 * x + 64), _mm512_castsi512_si256(_mm512_permutex2var_epi8(two, second, one)));
    }
    colours_avx2(y + x, cb + x, cr + x, out + 3 * x, width - x);
}
