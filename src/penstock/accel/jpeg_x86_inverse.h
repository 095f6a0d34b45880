/* Of `jpeg_x86.h`, for each width of vectors: all is done in parts of 16 bytes, two for each block, so that it is the same for one block and for two.
 * Of a vector of words, a block has eight in the lower halves of its two parts, where they lie for `PAIRS`. */

#define ALWAYS TARGET static inline __attribute__((always_inline))

/* x * a + y * b of eight lanes each; `pairs` are the lanes of x and y in turns. */
ALWAYS VECTOR WIDTH(mixed)(VECTOR pairs, int a, int b) {
    return OP(madd_epi16)(pairs, OP(set1_epi32)((int)((uint32_t)b << 16 | (a & 0xFFFF))));
}

#define MIXED WIDTH(mixed)
#define ADD OP(add_epi32)
#define SUB OP(sub_epi32)
#define PAIRS(x, y) OP(unpacklo_epi16)(x, y)
#define ROUND(x, shift) OP(srai_epi32)(ADD(x, OP(set1_epi32)(1 << ((shift) - 1))), shift)

/* As `one_way`, on words. The results have 32 bits. */
ALWAYS void WIDTH(one_way)(const VECTOR v[8], VECTOR out[8], const int shift) {
    const VECTOR zero = NOTHING, z26 = PAIRS(v[2], v[6]);
    const VECTOR even2 = MIXED(z26, 4433, 4433 - 15137), even3 = MIXED(z26, 4433 + 6270, 4433);
    const VECTOR even0 = OP(srai_epi32)(PAIRS(zero, OP(add_epi16)(v[0], v[4])), 3); /* << 13 */
    const VECTOR even1 = OP(srai_epi32)(PAIRS(zero, OP(sub_epi16)(v[0], v[4])), 3);
    const VECTOR a = ADD(even0, even3), d = SUB(even0, even3), b = ADD(even1, even2), c = SUB(even1, even2);
    const VECTOR z34 = PAIRS(OP(add_epi16)(v[7], v[3]), OP(add_epi16)(v[5], v[1]));
    const VECTOR z3 = MIXED(z34, 9633 - 16069, 9633), z4 = MIXED(z34, 9633, 9633 - 3196);
    const VECTOR odd71 = PAIRS(v[7], v[1]), odd53 = PAIRS(v[5], v[3]);
    const VECTOR t0 = ADD(MIXED(odd71, 2446 - 7373, -7373), z3), t3 = ADD(MIXED(odd71, -7373, 12299 - 7373), z4);
    const VECTOR t1 = ADD(MIXED(odd53, 16819 - 20995, -20995), z4), t2 = ADD(MIXED(odd53, -20995, 25172 - 20995), z3);
    out[0] = ROUND(ADD(a, t3), shift), out[7] = ROUND(SUB(a, t3), shift);
    out[1] = ROUND(ADD(b, t2), shift), out[6] = ROUND(SUB(b, t2), shift);
    out[2] = ROUND(ADD(c, t1), shift), out[5] = ROUND(SUB(c, t1), shift);
    out[3] = ROUND(ADD(d, t0), shift), out[4] = ROUND(SUB(d, t0), shift);
}

ALWAYS uint32_t WIDTH(squares)(const struct square *squares) {
    VECTOR v[8], w[8], most = NOTHING, lost = NOTHING;
    for (int row = 0; row < 8; row += 2) {
        const VECTOR x = LOAD(from, 8 * row), q = LOAD(steps, 8 * row);
        const VECTOR low = OP(mullo_epi16)(x, q), high = OP(mulhi_epi16)(x, q);
        lost = BITS(or_si)(lost, BITS(xor_si)(high, OP(srai_epi16)(low, 15))); /* high words must be all sign */
        most = BITS(or_si)(most, OP(abs_epi16)(low));
        v[row] = PLACED(low, 0x10), v[row + 1] = PLACED(low, 0x32);
    }
    uint32_t strange = ANY(lost, lost) | ANY(most, OP(set1_epi16)((short)~SANE));
    WIDTH(one_way)(v, w, 11);
    most = NOTHING;
    for (int row = 0; row < 8; row++) most = BITS(or_si)(most, OP(abs_epi32)(w[row]));
    strange |= ANY(most, OP(set1_epi32)(~SANE));
    /* To columns: w has a row each, 4 + 4 of its values in the parts. */
    const VECTOR in_turns = BYTES(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    VECTOR q[4]; /* dwords: (row 2i, row 2i + 1) of columns 0 1 2 3 | 4 5 6 7 */
    for (int i = 0; i < 4; i++) q[i] = OP(shuffle_epi8)(OP(packs_epi32)(w[2 * i], w[2 * i + 1]), in_turns);
    const VECTOR a0 = OP(unpacklo_epi32)(q[0], q[1]), a1 = OP(unpackhi_epi32)(q[0], q[1]); /* rows 0-3 of columns 0 1 | 4 5; 2 3 | 6 7 */
    const VECTOR b0 = OP(unpacklo_epi32)(q[2], q[3]), b1 = OP(unpackhi_epi32)(q[2], q[3]); /* rows 4-7 */
    v[0] = LOWER(a0, b0), v[2] = LOWER(a1, b1), v[4] = UPPER(a0, b0), v[6] = UPPER(a1, b1);
    for (int i = 0; i < 8; i += 2) v[i + 1] = OP(unpackhi_epi64)(v[i], v[i]);
    WIDTH(one_way)(v, w, 18);
    /* Eight columns, each with its rows in lanes, to rows of bytes. */
    const VECTOR p01 = OP(packs_epi32)(w[0], w[1]), p23 = OP(packs_epi32)(w[2], w[3]);
    const VECTOR p45 = OP(packs_epi32)(w[4], w[5]), p67 = OP(packs_epi32)(w[6], w[7]);
    const VECTOR turn = BYTES(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sign = OP(set1_epi8)((char)0x80);
    const VECTOR left = OP(shuffle_epi8)(BITS(xor_si)(OP(packs_epi16)(p01, p23), sign), turn);
    const VECTOR right = OP(shuffle_epi8)(BITS(xor_si)(OP(packs_epi16)(p45, p67), sign), turn);
    const VECTOR low = OP(unpacklo_epi32)(left, right), high = OP(unpackhi_epi32)(left, right);
    for (int n = 0; n < BLOCKS; n++) {
        const __m256i upper = HALF(low, n), lower = HALF(high, n);
        const __m128i rows[4] = {_mm256_castsi256_si128(upper), _mm256_castsi256_si128(lower), _mm256_extracti128_si256(upper, 1),
                                 _mm256_extracti128_si256(lower, 1)};
        for (int i = 0; i < 4; i++) {
            uint8_t *to = squares[n].to + squares[n].stride * (2 * i);
            _mm_storel_epi64((__m128i *)to, rows[i]);
            _mm_storel_epi64((__m128i *)(to + squares[n].stride), _mm_unpackhi_epi64(rows[i], rows[i]));
        }
    }
    return strange;
}

#undef ALWAYS
#undef MIXED
#undef ADD
#undef SUB
#undef PAIRS
#undef ROUND
#undef WIDTH
#undef TARGET
#undef BLOCKS
#undef VECTOR
#undef OP
#undef NOTHING
#undef LOAD
#undef ANY
#undef PLACED
#undef LOWER
#undef UPPER
#undef BYTES
#undef HALF
#undef BITS
