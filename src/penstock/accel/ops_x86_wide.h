/* Of ops_x86.h, in vectors of 64 bytes. Where a row ends, masks do: nothing behind it is read or written. */

/* A table as words of two neighbours, thirty-two in a vector. */
struct table {
    __m512i words[4];
};

WITH_WIDE static inline struct table table_at(const uint8_t *table) {
    struct table found;
    for (int i = 0; i < 4; i++) found.words[i] = _mm512_loadu_si512(table + 64 * i);
    return found;
}

/* For values below 256 in words: the words of the table that they are in. */
WITH_WIDE static inline __m512i words_of(__m512i value, struct table t) {
    const __m512i at = _mm512_srli_epi16(value, 1);
    const __m512i low = _mm512_permutex2var_epi16(t.words[0], at, t.words[1]), high = _mm512_permutex2var_epi16(t.words[2], at, t.words[3]);
    return _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(value, _mm512_set1_epi16(128)), high);
}

/* What sixty-four values become: those at even places, then those at odd ones. A word of the table has the byte of an even value below
 * that of the odd one behind it. */
WITH_WIDE static inline __m512i found_in(__m512i values, struct table t) {
    const __m512i one = _mm512_set1_epi16(1), even = _mm512_and_si512(values, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(values, 8);
    __m512i first = words_of(even, t), second = words_of(odd, t);
    first = _mm512_mask_srli_epi16(first, _mm512_test_epi16_mask(even, one), first, 8);
    second = _mm512_mask_slli_epi16(second, _mm512_testn_epi16_mask(odd, one), second, 8);
    return _mm512_mask_blend_epi8(0xAAAAAAAAAAAAAAAA, first, second);
}

WITH_WIDE static inline __mmask64 first_of(long count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

/* The same where bytes can be taken from anywhere in two vectors, by the lower seven bits of a place. */
WITH_PERMUTES static inline __m512i taken_from(__m512i values, struct table t) {
    const __m512i low = _mm512_permutex2var_epi8(t.words[0], values, t.words[1]);
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(values), _mm512_permutex2var_epi8(t.words[2], values, t.words[3]));
}

/* By one table; and by three, the values of which lie at every third place, twenty-one pixels at once. */
#define LOOK_UPS(TARGET, one, three, found) \
    TARGET static void one(const uint8_t *image, long count, const uint8_t *table, uint8_t *restrict out) { \
        const struct table t = table_at(table); \
        for (long i = 0; i < count; i += 64) { \
            const __mmask64 there = first_of(count - i); \
            _mm512_mask_storeu_epi8(out + i, there, found(_mm512_maskz_loadu_epi8(there, image + i), t)); \
        } \
    } \
    TARGET static void three(const uint8_t *image, long count, const uint8_t tables[3][256], uint8_t *restrict out) { \
        const struct table a = table_at(tables[0]), b = table_at(tables[1]), c = table_at(tables[2]); \
        for (long i = 0; i < count; i += 63) { \
            const __mmask64 there = first_of(count - i) & (~0ull >> 1); \
            const __m512i values = _mm512_maskz_loadu_epi8(there, image + i); \
            const __m512i both = _mm512_mask_mov_epi8(found(values, a), 0x2492492492492492, found(values, b)); \
            _mm512_mask_storeu_epi8(out + i, there, _mm512_mask_mov_epi8(both, 0x4924924924924924, found(values, c))); \
        } \
    }

LOOK_UPS(WITH_WIDE, look_up_wide, look_up3_wide, found_in)
LOOK_UPS(WITH_PERMUTES, look_up_permuted, look_up3_permuted, taken_from)

/* Sixteen pixels of three bytes, or fewer: those that there are. */
WITH_WIDE static inline __mmask64 bytes_of(int pixels) { return first_of(pixels < 16 ? 3 * pixels : 48); }

/* Four of them in each quarter, behind which lie four bytes of the next; and from there to where they are stored. */
WITH_WIDE static inline __m512i quartered(const uint8_t *from, __mmask64 there) {
    const __m512i quarters = _mm512_setr_epi32(0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12);
    return _mm512_permutexvar_epi32(quarters, _mm512_maskz_loadu_epi8(there, from));
}

WITH_WIDE static inline void store_pixels(uint8_t *to, __mmask64 there, __m512i words) {
    const __m512i close = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    const __m512i closer = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
    _mm512_mask_storeu_epi8(to, there, _mm512_permutexvar_epi32(closer, _mm512_shuffle_epi8(words, close)));
}

/* As `greys_avx2`. */
WITH_WIDE static inline __m512i greys_wide(__m512i pixels) {
    const __m512i reds = _mm512_broadcast_i32x4(_mm_setr_epi8(0, -1, 1, -1, 3, -1, 4, -1, 6, -1, 7, -1, 9, -1, 10, -1));
    const __m512i blues = _mm512_broadcast_i32x4(_mm_setr_epi8(1, -1, 2, -1, 4, -1, 5, -1, 7, -1, 8, -1, 10, -1, 11, -1));
    const __m512i red = _mm512_madd_epi16(_mm512_shuffle_epi8(pixels, reds), _mm512_set1_epi32(19235 << 16 | 19595));
    const __m512i blue = _mm512_madd_epi16(_mm512_shuffle_epi8(pixels, blues), _mm512_set1_epi32(7471 << 16 | 19235));
    return _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(red, blue), _mm512_set1_epi32(0x8000)), 16);
}

WITH_WIDE static int grey_sum_wide(const uint8_t *from, int width, int64_t *sum) {
    __m512i sums = _mm512_setzero_si512();
    for (int x = 0; x < width; x += 16) sums = _mm512_add_epi32(sums, greys_wide(quartered(from + 3 * (size_t)x, bytes_of(width - x))));
    *sum += _mm512_reduce_add_epi32(sums);
    return width;
}

WITH_WIDE static inline __m512i mixed_wide(__m512i from, __m512i to, __m512 share) {
    const __m512 way = _mm512_mul_ps(share, _mm512_cvtepi32_ps(_mm512_sub_epi32(to, from)));
    const __m512 value = _mm512_max_ps(_mm512_add_ps(_mm512_cvtepi32_ps(from), way), _mm512_setzero_ps());
    return _mm512_cvttps_epi32(_mm512_min_ps(value, _mm512_set1_ps(255.0f)));
}

WITH_WIDE static int saturate_wide(const uint8_t *from, int width, float share, uint8_t *out) {
    const __m512 by = _mm512_set1_ps(share);
    const __m512i first = _mm512_broadcast_i32x4(_mm_setr_epi8(0, -1, -1, -1, 3, -1, -1, -1, 6, -1, -1, -1, 9, -1, -1, -1));
    for (int x = 0; x < width; x += 16) {
        const __mmask64 there = bytes_of(width - x);
        const __m512i pixels = quartered(from + 3 * (size_t)x, there), level = greys_wide(pixels);
        __m512i found = _mm512_setzero_si512();
        for (int c = 2; c >= 0; c--) {
            const __m512i channel = _mm512_shuffle_epi8(pixels, _mm512_add_epi8(first, _mm512_set1_epi32(c)));
            found = _mm512_or_si512(_mm512_slli_epi32(found, 8), mixed_wide(level, channel, by));
        }
        store_pixels(out + 3 * (size_t)x, there, found);
    }
    return width;
}

/* As `sharpen_avx2`, in thirty-twos. */
WITH_WIDE static int sharpen_wide(const uint8_t *at, const uint16_t *column, int x, int end, int channels, float share, uint8_t *restrict to) {
    const __m512 by = _mm512_set1_ps(share);
    for (; x + 32 <= end; x += 32) {
        const __m512i own = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(at + x)));
        __m512i sum = _mm512_add_epi16(_mm512_loadu_si512(column + x), _mm512_set1_epi16(6));
        sum = _mm512_add_epi16(sum, _mm512_add_epi16(_mm512_loadu_si512(column + x - channels), _mm512_loadu_si512(column + x + channels)));
        const __m512i smooth = _mm512_mulhi_epu16(_mm512_add_epi16(sum, _mm512_slli_epi16(own, 2)), _mm512_set1_epi16(THIRTEENTH));
        for (int half = 0; half < 2; half++) {
            const __m256i from = half ? _mm512_extracti64x4_epi64(smooth, 1) : _mm512_castsi512_si256(smooth);
            const __m512i beside = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(at + x + 16 * half)));
            _mm_storeu_si128((__m128i *)(to + x + 16 * half), _mm512_cvtepi32_epi8(mixed_wide(_mm512_cvtepu16_epi32(from), beside, by)));
        }
    }
    return x;
}

/* As `gather_avx2`, all of them. */
WITH_WIDE static int gather_wide(const uint8_t *begin, int stride, int xx, int yy, int dx, int dy, int count, uint8_t *out) {
    const __m512i each = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), row = _mm512_set1_epi32(stride);
    __m512i x = _mm512_add_epi32(_mm512_set1_epi32(xx), _mm512_mullo_epi32(each, _mm512_set1_epi32(dx)));
    __m512i y = _mm512_add_epi32(_mm512_set1_epi32(yy), _mm512_mullo_epi32(each, _mm512_set1_epi32(dy)));
    const __m512i right = _mm512_slli_epi32(_mm512_set1_epi32(dx), 4), down = _mm512_slli_epi32(_mm512_set1_epi32(dy), 4);
    for (int i = 0; i < count; i += 16, x = _mm512_add_epi32(x, right), y = _mm512_add_epi32(y, down)) {
        const __m512i columns = _mm512_srai_epi32(x, 16);
        const __m512i at = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srai_epi32(y, 16), row),
                                            _mm512_add_epi32(columns, _mm512_add_epi32(columns, columns)));
        const __mmask16 pixels = (__mmask16)first_of(count - i < 16 ? count - i : 16);
        store_pixels(out + 3 * (size_t)i, bytes_of(count - i), _mm512_mask_i32gather_epi32(at, pixels, at, begin, 1));
    }
    return count > 0 ? count : 0;
}
