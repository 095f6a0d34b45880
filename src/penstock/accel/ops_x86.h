/* The parts of ops.c in vectors of 32 and of 64 bytes: what ops_plain.h has, done. */

#include <immintrin.h>

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

#define SERVER __attribute__((target("avx512bw")))

/* A table as words of two neighbours, thirty-two in a vector. */
struct table {
    __m512i words[4];
};

SERVER static inline struct table table_at(const uint8_t *table) {
    struct table found;
    for (int i = 0; i < 4; i++) found.words[i] = _mm512_loadu_si512(table + 64 * i);
    return found;
}

/* For values below 256 in words: the words of the table that they are in. */
SERVER static inline __m512i words_of(__m512i value, struct table t) {
    const __m512i at = _mm512_srli_epi16(value, 1);
    const __m512i low = _mm512_permutex2var_epi16(t.words[0], at, t.words[1]), high = _mm512_permutex2var_epi16(t.words[2], at, t.words[3]);
    return _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(value, _mm512_set1_epi16(128)), high);
}

/* What sixty-four values become: those at even places, then those at odd ones. A word of the table has the byte of an even value below
 * that of the odd one behind it. */
SERVER static inline __m512i found_in(__m512i values, struct table t) {
    const __m512i one = _mm512_set1_epi16(1), even = _mm512_and_si512(values, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(values, 8);
    __m512i first = words_of(even, t), second = words_of(odd, t);
    first = _mm512_mask_srli_epi16(first, _mm512_test_epi16_mask(even, one), first, 8);
    second = _mm512_mask_slli_epi16(second, _mm512_testn_epi16_mask(odd, one), second, 8);
    return _mm512_mask_blend_epi8(0xAAAAAAAAAAAAAAAA, first, second);
}

SERVER static inline __mmask64 first_of(long count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

SERVER static void look_up_avx512(const uint8_t *image, long count, const uint8_t *table, uint8_t *restrict out) {
    const struct table t = table_at(table);
    for (long i = 0; i < count; i += 64) {
        const __mmask64 there = first_of(count - i);
        _mm512_mask_storeu_epi8(out + i, there, found_in(_mm512_maskz_loadu_epi8(there, image + i), t));
    }
}

/* By three tables, the values of which lie at every third place. */
SERVER static void look_up3_avx512(const uint8_t *image, long count, const uint8_t tables[3][256], uint8_t *restrict out) {
    const struct table a = table_at(tables[0]), b = table_at(tables[1]), c = table_at(tables[2]);
    const __mmask64 second = 0x2492492492492492, third = 0x4924924924924924;
    for (long i = 0; i < count; i += 63) { /* twenty-one pixels */
        const __mmask64 there = first_of(count - i) & (~0ull >> 1);
        const __m512i values = _mm512_maskz_loadu_epi8(there, image + i);
        const __m512i found = _mm512_mask_mov_epi8(found_in(values, a), second, found_in(values, b));
        _mm512_mask_storeu_epi8(out + i, there, _mm512_mask_mov_epi8(found, third, found_in(values, c)));
    }
}

static long look_up_some(const uint8_t *image, long count, const uint8_t *table, uint8_t *restrict out) {
    if (!penstock_uses(WIDE)) return penstock_uses(AVX2) ? look_up_avx2(image, count, table, out) : 0;
    look_up_avx512(image, count, table, out);
    return count;
}

static long look_up3_some(const uint8_t *image, long count, const uint8_t tables[3][256], uint8_t *restrict out) {
    if (!penstock_uses(WIDE)) return 0;
    look_up3_avx512(image, count, tables, out);
    return count;
}

#define HASWELL __attribute__((target("avx2")))

/* Channel `c` of eight pixels, four of them in each half. */
HASWELL static inline __m256i channel_of(__m256i pixels, int c) {
    const __m256i first = _mm256_setr_epi8(0, -1, -1, -1, 3, -1, -1, -1, 6, -1, -1, -1, 9, -1, -1, -1, 0, -1, -1, -1, 3, -1, -1, -1, 6, -1,
                                           -1, -1, 9, -1, -1, -1);
    return _mm256_shuffle_epi8(pixels, _mm256_add_epi8(first, _mm256_set1_epi32(c)));
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
        const __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)from)),
                                                       _mm_loadu_si128((const __m128i *)(from + 12)), 1);
        const __m256i r = channel_of(pixels, 0), g = channel_of(pixels, 1), b = channel_of(pixels, 2);
        __m256i level = _mm256_add_epi32(_mm256_mullo_epi32(r, _mm256_set1_epi32(19595)), _mm256_mullo_epi32(g, _mm256_set1_epi32(38470)));
        level = _mm256_add_epi32(level, _mm256_mullo_epi32(b, _mm256_set1_epi32(7471)));
        level = _mm256_srli_epi32(_mm256_add_epi32(level, _mm256_set1_epi32(0x8000)), 16);
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
    const __m256i right = _mm256_set1_epi32(8 * dx), down = _mm256_set1_epi32(8 * dy);
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

static int saturate_some(const uint8_t *from, int width, float share, uint8_t *out) {
    return penstock_uses(AVX2) ? saturate_avx2(from, width, share, out) : 0;
}

static int sharpen_some(const uint8_t *at, const uint16_t *column, int x, int end, int channels, float share, uint8_t *restrict to) {
    return penstock_uses(AVX2) ? sharpen_avx2(at, column, x, end, channels, share, to) : x;
}

static int gather_some(const uint8_t *begin, int stride, int xx, int yy, int dx, int dy, int count, uint8_t *out) {
    return penstock_uses(AVX2) ? gather_avx2(begin, stride, xx, yy, dx, dy, count, out) : 0;
}
