/* The parts of ops.c in vectors of 32 bytes, and the choice between those and longer ones: what ops_plain.h has, done. */

#include <immintrin.h>

#include "ops_x86_wide.h"

/* By one table, as many as come in thirty-twos; how many that were. A shuffle looks up sixteen values, and gives 0 for a place above 127: so all
 * sixteen parts of the table are asked, each with its own sixteen values moved to where they lie below that and all others above. */
__attribute__((target("avx2"))) static long look_up_avx2(const uint8_t *image, long count, const uint8_t *table, uint8_t *restrict out) {
    const __m256i lift = _mm256_set1_epi8(0x70), part = _mm256_set1_epi8(16);
    long i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256i value = _mm256_loadu_si256((const __m256i *)(image + i)), found = _mm256_setzero_si256();
        for (int at = 0; at < 256; at += 16, value = _mm256_sub_epi8(value, part)) {
            const __m256i row = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(table + at)));
            found = _mm256_or_si256(found, _mm256_shuffle_epi8(row, _mm256_adds_epu8(value, lift)));
        }
        _mm256_storeu_si256((__m256i *)(out + i), found);
    }
    return i;
}

#define HASWELL __attribute__((target("avx2")))

/* Channel `c` of eight pixels, four of them in each half. */
HASWELL static inline __m256i channel_of(__m256i pixels, int c) {
    const __m256i first = _mm256_setr_epi8(0, -1, -1, -1, 3, -1, -1, -1, 6, -1, -1, -1, 9, -1, -1, -1, 0, -1, -1, -1, 3, -1, -1, -1, 6, -1,
                                           -1, -1, 9, -1, -1, -1);
    return _mm256_shuffle_epi8(pixels, _mm256_add_epi8(first, _mm256_set1_epi32(c)));
}

/* Pillow's grey of eight pixels. Green's share, halved, goes with both of the others, since products are of two signed words. */
HASWELL static inline __m256i greys_avx2(__m256i pixels) {
    const __m256i reds = _mm256_setr_epi8(0, -1, 1, -1, 3, -1, 4, -1, 6, -1, 7, -1, 9, -1, 10, -1, 0, -1, 1, -1, 3, -1, 4, -1, 6, -1, 7,
                                          -1, 9, -1, 10, -1);
    const __m256i blues = _mm256_setr_epi8(1, -1, 2, -1, 4, -1, 5, -1, 7, -1, 8, -1, 10, -1, 11, -1, 1, -1, 2, -1, 4, -1, 5, -1, 7, -1, 8,
                                           -1, 10, -1, 11, -1);
    const __m256i red = _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, reds), _mm256_set1_epi32(19235 << 16 | 19595));
    const __m256i blue = _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, blues), _mm256_set1_epi32(7471 << 16 | 19235));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(red, blue), _mm256_set1_epi32(0x8000)), 16);
}

/* Eight pixels of three bytes, four in each half; four bytes behind them are read. */
HASWELL static inline __m256i eight_pixels(const uint8_t *from) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)from)),
                                   _mm_loadu_si128((const __m128i *)(from + 12)), 1);
}

/* Adds the greys of as many pixels of a row as come in eights with two more behind them; how many that were. */
HASWELL static int grey_sum_avx2(const uint8_t *from, int width, int64_t *sum) {
    __m256i sums = _mm256_setzero_si256();
    int x = 0;
    for (; x + 10 <= width; x += 8) sums = _mm256_add_epi32(sums, greys_avx2(eight_pixels(from + 3 * x)));
    int32_t each[8];
    _mm256_storeu_si256((__m256i *)each, sums);
    for (int i = 0; i < 8; i++) *sum += each[i];
    return x;
}

HASWELL static inline __m256i mixed_avx2(__m256i from, __m256i to, __m256 share) {
    const __m256 apart = _mm256_cvtepi32_ps(_mm256_sub_epi32(to, from));
    const __m256 value = _mm256_add_ps(_mm256_cvtepi32_ps(from), _mm256_mul_ps(share, apart));
    return _mm256_cvttps_epi32(_mm256_min_ps(_mm256_max_ps(value, _mm256_setzero_ps()), _mm256_set1_ps(255.0f)));
}

/* Of a row, as many pixels as come in eights with two more behind them, since four bytes too many are read and written; how many that
 * were. */
HASWELL static int saturate_avx2(const uint8_t *from, int width, float share, uint8_t *out) {
    const __m256 by = _mm256_set1_ps(share);
    const __m256i close = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13,
                                           14, -1, -1, -1, -1);
    int x = 0;
    for (; x + 10 <= width; x += 8, from += 24, out += 24) {
        const __m256i pixels = eight_pixels(from), level = greys_avx2(pixels);
        const __m256i r = channel_of(pixels, 0), g = channel_of(pixels, 1), b = channel_of(pixels, 2);
        const __m256i red = mixed_avx2(level, r, by), green = mixed_avx2(level, g, by), blue = mixed_avx2(level, b, by);
        const __m256i together = _mm256_or_si256(red, _mm256_or_si256(_mm256_slli_epi32(green, 8), _mm256_slli_epi32(blue, 16)));
        const __m256i found = _mm256_shuffle_epi8(together, close);
        _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(found));
        _mm_storeu_si128((__m128i *)(out + 12), _mm256_extracti128_si256(found, 1));
    }
    return x;
}

/* Of the bytes from `x` to `end`, as many as come in sixteens; where it stopped. */
HASWELL static int sharpen_avx2(const uint8_t *at, const uint16_t *column, int x, int end, int channels, float share, uint8_t *restrict to) {
    const __m256 by = _mm256_set1_ps(share), most = _mm256_set1_ps(255.0f), none = _mm256_setzero_ps();
    for (; x + 16 <= end; x += 16) {
        const __m256i own = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(at + x)));
        __m256i sum = _mm256_add_epi16(_mm256_loadu_si256((const __m256i *)(column + x)), _mm256_set1_epi16(6));
        sum = _mm256_add_epi16(sum, _mm256_loadu_si256((const __m256i *)(column + x - channels)));
        sum = _mm256_add_epi16(sum, _mm256_loadu_si256((const __m256i *)(column + x + channels)));
        sum = _mm256_add_epi16(sum, _mm256_slli_epi16(own, 2));
        const __m256i smooth = _mm256_mulhi_epu16(sum, _mm256_set1_epi16(THIRTEENTH)), apart = _mm256_sub_epi16(own, smooth);
        __m256i found[2];
        for (int half = 0; half < 2; half++) {
            const __m128i from = half ? _mm256_extracti128_si256(smooth, 1) : _mm256_castsi256_si128(smooth);
            const __m128i way = half ? _mm256_extracti128_si256(apart, 1) : _mm256_castsi256_si128(apart);
            __m256 value = _mm256_mul_ps(by, _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(way)));
            value = _mm256_add_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(from)), value);
            found[half] = _mm256_cvttps_epi32(_mm256_min_ps(_mm256_max_ps(value, none), most));
        }
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(found[0], found[1]), 0xD8);
        _mm_storeu_si128((__m128i *)(to + x), _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
    return x;
}

/* Of pixels of three bytes at places that `dx` and `dy` lie between, as many as come in eights with two more behind them, since four
 * bytes too many are written; how many that were. Places must be within two gigabytes of `begin`. */
HASWELL static int gather_avx2(const uint8_t *begin, int stride, int xx, int yy, int dx, int dy, int count, uint8_t *out) {
    const __m256i close = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13,
                                           14, -1, -1, -1, -1);
    const __m256i eight = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), row = _mm256_set1_epi32(stride);
    __m256i x = _mm256_add_epi32(_mm256_set1_epi32(xx), _mm256_mullo_epi32(eight, _mm256_set1_epi32(dx)));
    __m256i y = _mm256_add_epi32(_mm256_set1_epi32(yy), _mm256_mullo_epi32(eight, _mm256_set1_epi32(dy)));
    const __m256i right = _mm256_slli_epi32(_mm256_set1_epi32(dx), 3), down = _mm256_slli_epi32(_mm256_set1_epi32(dy), 3);
    int i = 0;
    for (; i + 10 <= count; i += 8, out += 24, x = _mm256_add_epi32(x, right), y = _mm256_add_epi32(y, down)) {
        const __m256i column = _mm256_srai_epi32(x, 16);
        const __m256i at = _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srai_epi32(y, 16), row),
                                            _mm256_add_epi32(column, _mm256_add_epi32(column, column)));
        const __m256i found = _mm256_shuffle_epi8(_mm256_i32gather_epi32((const int *)begin, at, 1), close);
        _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(found));
        _mm_storeu_si128((__m128i *)(out + 12), _mm256_extracti128_si256(found, 1));
    }
    return i;
}

static long look_up_some(const uint8_t *image, long count, const uint8_t *table, uint8_t *restrict out) {
    if (!penstock_uses(WIDE)) return penstock_uses(AVX2) ? look_up_avx2(image, count, table, out) : 0;
    if (penstock_uses(PERMUTES))
        look_up_permuted(image, count, table, out);
    else
        look_up_wide(image, count, table, out);
    return count;
}

static long look_up3_some(const uint8_t *image, long count, const uint8_t tables[3][256], uint8_t *restrict out) {
    if (!penstock_uses(WIDE)) return 0;
    if (penstock_uses(PERMUTES))
        look_up3_permuted(image, count, tables, out);
    else
        look_up3_wide(image, count, tables, out);
    return count;
}

static int grey_sum_some(const uint8_t *from, int width, int64_t *sum) {
    if (penstock_uses(WIDE)) return grey_sum_wide(from, width, sum);
    return penstock_uses(AVX2) ? grey_sum_avx2(from, width, sum) : 0;
}

static int saturate_some(const uint8_t *from, int width, float share, uint8_t *out) {
    if (penstock_uses(WIDE)) return saturate_wide(from, width, share, out);
    return penstock_uses(AVX2) ? saturate_avx2(from, width, share, out) : 0;
}

static int sharpen_some(const uint8_t *at, const uint16_t *column, int x, int end, int channels, float share, uint8_t *restrict to) {
    if (penstock_uses(WIDE)) x = sharpen_wide(at, column, x, end, channels, share, to);
    return penstock_uses(AVX2) ? sharpen_avx2(at, column, x, end, channels, share, to) : x;
}

static int gather_some(const uint8_t *begin, int stride, int xx, int yy, int dx, int dy, int count, uint8_t *out) {
    if (penstock_uses(WIDE)) return gather_wide(begin, stride, xx, yy, dx, dy, count, out);
    return penstock_uses(AVX2) ? gather_avx2(begin, stride, xx, yy, dx, dy, count, out) : 0;
}
