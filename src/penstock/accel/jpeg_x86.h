/* The parts of jpeg.c that vectors of 32 bytes make fast, and what else Haswell has. */

#include <immintrin.h>

#define HASWELL __attribute__((target("avx2,bmi,bmi2,lzcnt")))

HASWELL static void chroma_avx2(const uint8_t *near, const uint8_t *far, int first, int count, int most, uint16_t *sums,
                                uint8_t *to) {
    chroma_row(near, far, first, count, most, sums, to);
}

/* x * a + y * b of eight lanes each; `pairs` are the lanes of x and y in turns. */
HASWELL static inline __m256i two(__m256i pairs, int a, int b) {
    return _mm256_madd_epi16(pairs, _mm256_set1_epi32((int)((uint32_t)b << 16 | (a & 0xFFFF))));
}

/* The eight lanes of a vector of words that stand in its halves' lower parts, and others', in turns: in pairs for `two`. */
#define PAIRS(x, y) _mm256_unpacklo_epi16(x, y)
#define ROUND(x, shift) _mm256_srai_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(1 << ((shift) - 1))), shift)

/* As `one_way`, on words: each vector has its eight in the lower parts of its halves. The results have 32 bits. */
HASWELL static inline __attribute__((always_inline)) void one_way_words(const __m256i v[8], __m256i out[8], const int shift) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i z26 = PAIRS(v[2], v[6]);
    const __m256i even2 = two(z26, 4433, 4433 - 15137), even3 = two(z26, 4433 + 6270, 4433);
    const __m256i even0 = _mm256_srai_epi32(PAIRS(zero, _mm256_add_epi16(v[0], v[4])), 3); /* << 13 */
    const __m256i even1 = _mm256_srai_epi32(PAIRS(zero, _mm256_sub_epi16(v[0], v[4])), 3);
    const __m256i a = _mm256_add_epi32(even0, even3), d = _mm256_sub_epi32(even0, even3);
    const __m256i b = _mm256_add_epi32(even1, even2), c = _mm256_sub_epi32(even1, even2);
    const __m256i z34 = PAIRS(_mm256_add_epi16(v[7], v[3]), _mm256_add_epi16(v[5], v[1]));
    const __m256i z3 = two(z34, 9633 - 16069, 9633), z4 = two(z34, 9633, 9633 - 3196);
    const __m256i odd71 = PAIRS(v[7], v[1]), odd53 = PAIRS(v[5], v[3]);
    const __m256i t0 = _mm256_add_epi32(two(odd71, 2446 - 7373, -7373), z3);
    const __m256i t3 = _mm256_add_epi32(two(odd71, -7373, 12299 - 7373), z4);
    const __m256i t1 = _mm256_add_epi32(two(odd53, 16819 - 20995, -20995), z4);
    const __m256i t2 = _mm256_add_epi32(two(odd53, -20995, 25172 - 20995), z3);
    out[0] = ROUND(_mm256_add_epi32(a, t3), shift);
    out[7] = ROUND(_mm256_sub_epi32(a, t3), shift);
    out[1] = ROUND(_mm256_add_epi32(b, t2), shift);
    out[6] = ROUND(_mm256_sub_epi32(b, t2), shift);
    out[2] = ROUND(_mm256_add_epi32(c, t1), shift);
    out[5] = ROUND(_mm256_sub_epi32(c, t1), shift);
    out[3] = ROUND(_mm256_add_epi32(d, t0), shift);
    out[4] = ROUND(_mm256_sub_epi32(d, t0), shift);
}

HASWELL static uint32_t inverse_avx2(const int16_t *from, const int16_t *steps, int last, uint8_t *to, size_t stride) {
    (void)last;
    __m256i v[8], w[8], most = _mm256_setzero_si256(), lost = _mm256_setzero_si256();
    for (int row = 0; row < 8; row += 2) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(from + 8 * row)), q = _mm256_loadu_si256((const __m256i *)(steps + 8 * row));
        const __m256i low = _mm256_mullo_epi16(x, q), high = _mm256_mulhi_epi16(x, q);
        lost = _mm256_or_si256(lost, _mm256_xor_si256(high, _mm256_srai_epi16(low, 15))); /* high words must be all sign */
        most = _mm256_or_si256(most, _mm256_abs_epi16(low));
        const __m256i first = _mm256_permute4x64_epi64(low, 0x10), second = _mm256_permute4x64_epi64(low, 0x32);
        v[row] = first, v[row + 1] = second;
    }
    uint32_t strange = !_mm256_testz_si256(lost, lost) || !_mm256_testz_si256(most, _mm256_set1_epi16((short)~SANE));
    one_way_words(v, w, 11);
    most = _mm256_setzero_si256();
    for (int row = 0; row < 8; row++) most = _mm256_or_si256(most, _mm256_abs_epi32(w[row]));
    strange |= !_mm256_testz_si256(most, _mm256_set1_epi32(~SANE));
    /* To columns: w has a row each, 4 + 4 of its values in the halves. */
    __m256i p[4], q[4];
    for (int i = 0; i < 4; i++) p[i] = _mm256_packs_epi32(w[2 * i], w[2 * i + 1]); /* rows 2i, 2i+1: columns 0-3 | 4-7 */
    for (int i = 0; i < 4; i++) { /* 0 2 4 6 of row 2i and 2i+1 in turns */
        const __m256i turned = _mm256_shuffle_epi8(p[i], _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1, 8, 9,
                                                                         2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
        q[i] = turned; /* dwords: (r2i, r2i+1) of columns 0 1 2 3 | 4 5 6 7 */
    }
    const __m256i a0 = _mm256_unpacklo_epi32(q[0], q[1]), a1 = _mm256_unpackhi_epi32(q[0], q[1]); /* rows 0-3 of columns 0 1 | 4 5; 2 3 | 6 7 */
    const __m256i b0 = _mm256_unpacklo_epi32(q[2], q[3]), b1 = _mm256_unpackhi_epi32(q[2], q[3]); /* rows 4-7 */
    /* Column c: rows 0-3 in the lower half's lower part, rows 4-7 in the upper half's. */
    v[0] = _mm256_permute2x128_si256(a0, b0, 0x20), v[1] = _mm256_unpackhi_epi64(v[0], v[0]);
    v[2] = _mm256_permute2x128_si256(a1, b1, 0x20), v[3] = _mm256_unpackhi_epi64(v[2], v[2]);
    v[4] = _mm256_permute2x128_si256(a0, b0, 0x31), v[5] = _mm256_unpackhi_epi64(v[4], v[4]);
    v[6] = _mm256_permute2x128_si256(a1, b1, 0x31), v[7] = _mm256_unpackhi_epi64(v[6], v[6]);
    one_way_words(v, w, 18);
    /* Eight columns, each with its rows in lanes, to rows of bytes. */
    const __m256i p01 = _mm256_packs_epi32(w[0], w[1]), p23 = _mm256_packs_epi32(w[2], w[3]);
    const __m256i p45 = _mm256_packs_epi32(w[4], w[5]), p67 = _mm256_packs_epi32(w[6], w[7]);
    const __m256i turn = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10,
                                          14, 3, 7, 11, 15);
    const __m256i sign = _mm256_set1_epi8((char)0x80);
    const __m256i left = _mm256_shuffle_epi8(_mm256_xor_si256(_mm256_packs_epi16(p01, p23), sign), turn);
    const __m256i right = _mm256_shuffle_epi8(_mm256_xor_si256(_mm256_packs_epi16(p45, p67), sign), turn);
    const __m256i low = _mm256_unpacklo_epi32(left, right), high = _mm256_unpackhi_epi32(left, right);
    const __m128i rows[4] = {_mm256_castsi256_si128(low), _mm256_castsi256_si128(high), _mm256_extracti128_si256(low, 1),
                             _mm256_extracti128_si256(high, 1)};
    for (int i = 0; i < 4; i++) {
        _mm_storel_epi64((__m128i *)(to + stride * (2 * i)), rows[i]);
        _mm_storel_epi64((__m128i *)(to + stride * (2 * i + 1)), _mm_unpackhi_epi64(rows[i], rows[i]));
    }
    return strange;
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
