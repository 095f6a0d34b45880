/* Single ops on uint8 images, as Pillow does them: look-up tables, histograms, flips, blends, the nearest pixel under a map. Written so
 * that compilers make vectors of them; plain C without Python's API, see accel/__init__.py. */

#include "accel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
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
#endif

/* What each value becomes: by one table of 256, or with three channels by one for each, value by value next to each other. */
void penstock_look_up(const uint8_t *image, long count, const uint8_t *table, int tables, uint8_t *restrict out) {
    uint8_t own[3][256];
#ifdef __x86_64__
    const int wide = penstock_uses(WIDE);
#endif
    if (tables == 1) {
        long i = 0;
#ifdef __x86_64__
        if (wide) {
            look_up_avx512(image, count, table, out);
            return;
        }
        if (penstock_uses(AVX2)) i = look_up_avx2(image, count, table, out);
#endif
        for (; i < count; i++) out[i] = table[image[i]];
        return;
    }
    for (int value = 0; value < 256; value++)
        for (int c = 0; c < 3; c++) own[c][value] = table[3 * value + c];
#ifdef __x86_64__
    if (wide) {
        look_up3_avx512(image, count, (const uint8_t(*)[256])own, out);
        return;
    }
#endif
    for (long i = 0; i + 2 < count; i += 3) {
        out[i] = own[0][image[i]];
        out[i + 1] = own[1][image[i + 1]];
        out[i + 2] = own[2][image[i + 2]];
    }
}

#define WAYS 4

/* A row's values, counted: neighbours apart, so that what was just written is not read again at once. */
static inline __attribute__((always_inline)) void count_row(const uint8_t *at, int width, const int channels, uint32_t counts[WAYS][3][256]) {
    int x = 0;
    for (; x + WAYS <= width; x += WAYS, at += WAYS * channels)
        for (int way = 0; way < WAYS; way++)
            for (int c = 0; c < channels; c++) counts[way][c][at[way * channels + c]]++;
    for (; x < width; x++, at += channels)
        for (int c = 0; c < channels; c++) counts[0][c][at[c]]++;
}

/* How often each value is there, by channel; of rows that lie `stride` bytes apart. */
void penstock_histogram(const uint8_t *image, long stride, int height, int width, int channels, int64_t *out) {
    uint32_t counts[WAYS][3][256];
    memset(out, 0, sizeof(int64_t) * 256 * channels);
    for (int row = 0; row < height;) {
        memset(counts, 0, sizeof counts);
        const int64_t most = UINT32_MAX / (width ? width : 1); /* rows whose counts cannot run over */
        for (int64_t rows = 0; row < height && rows < most; row++, rows++) {
            const uint8_t *at = image + (size_t)stride * row;
            if (channels == 3)
                count_row(at, width, 3, counts);
            else
                count_row(at, width, 1, counts);
        }
        for (int way = 0; way < WAYS; way++)
            for (int c = 0; c < channels; c++)
                for (int value = 0; value < 256; value++) out[256 * c + value] += counts[way][c][value];
    }
}

#define SPAN 96 /* bytes: pixels of three channels in whole vectors */

/* The least and the greatest value of each of three channels; of rows that lie `stride` bytes apart. */
VECTORS void penstock_extremes(const uint8_t *image, long stride, int height, int width, uint8_t *out) {
    uint8_t low[SPAN], high[SPAN];
    memset(low, 255, SPAN);
    memset(high, 0, SPAN);
    for (int row = 0; row < height; row++) {
        const uint8_t *at = image + (size_t)stride * row, *end = at + 3 * (size_t)width;
        for (; end - at >= SPAN; at += SPAN)
            for (int i = 0; i < SPAN; i++) {
                low[i] = at[i] < low[i] ? at[i] : low[i];
                high[i] = at[i] > high[i] ? at[i] : high[i];
            }
        for (int i = 0; at + i < end; i++) {
            low[i] = at[i] < low[i] ? at[i] : low[i];
            high[i] = at[i] > high[i] ? at[i] : high[i];
        }
    }
    for (int c = 0; c < 3; c++) {
        out[c] = 255;
        out[3 + c] = 0;
        for (int i = c; i < SPAN; i += 3) {
            out[c] = low[i] < out[c] ? low[i] : out[c];
            out[3 + c] = high[i] > out[3 + c] ? high[i] : out[3 + c];
        }
    }
}

/* Pillow's grey of a pixel, and its blend: cut towards 0 in single precision. */
static inline int grey(const uint8_t *p) { return (p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16; }

static inline uint8_t mixed(int from, int to, float share) {
    float value = (float)from + share * (float)(to - from);
    value = value < 0.0f ? 0.0f : value;
    return (uint8_t)(int)(value > 255.0f ? 255.0f : value);
}

/* The sum of the greys of an image of three channels. */
VECTORS int64_t penstock_grey_sum(const uint8_t *image, long stride, int height, int width) {
    int64_t sum = 0;
    for (int row = 0; row < height; row++) {
        const uint8_t *from = image + (size_t)stride * row;
        int32_t line = 0;
        for (int x = 0; x < width; x++) line += grey(from + 3 * (size_t)x);
        sum += line;
    }
    return sum;
}

#ifdef __x86_64__
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
#endif

/* Each pixel of three channels blended with its own grey. */
void penstock_saturate(const uint8_t *image, long stride, int height, int width, float share, uint8_t *out) {
    for (int row = 0; row < height; row++) {
        const uint8_t *from = image + (size_t)stride * row;
        int x = 0;
#ifdef __x86_64__
        if (penstock_uses(AVX2)) x = saturate_avx2(from, width, share, out);
        from += 3 * (size_t)x;
        out += 3 * (size_t)x;
#endif
        for (; x < width; x++, from += 3, out += 3) {
            const int level = grey(from);
            out[0] = mixed(level, from[0], share);
            out[1] = mixed(level, from[1], share);
            out[2] = mixed(level, from[2], share);
        }
    }
}

/* A byte's sum with those above and below it. */
VECTORS static void columns_of(const uint8_t *at, int length, uint16_t *restrict column) {
    const uint8_t *above = at - length, *below = at + length;
    for (int x = 0; x < length; x++) column[x] = (uint16_t)(above[x] + at[x] + below[x]);
}

#define THIRTEENTH 5042 /* of 65,536: exact up to 6,553 */

#ifdef __x86_64__
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
#endif

/* Each inner pixel blended with its smooth version, in which it counts five times and its eight neighbours once; the border is left as
 * it is. Rows of `length` bytes without gaps. Whether there was memory for a row of sums. */
int penstock_sharpen(const uint8_t *image, int rows, int length, int channels, float share, uint8_t *restrict out) {
    uint16_t *column = malloc(sizeof(uint16_t) * (size_t)length);
    if (!column) return 0;
    memcpy(out, image, (size_t)length);
    memcpy(out + (size_t)length * (rows - 1), image + (size_t)length * (rows - 1), (size_t)length);
    for (int row = 1; row < rows - 1; row++) {
        const uint8_t *at = image + (size_t)length * row;
        uint8_t *to = out + (size_t)length * row;
        int x = channels;
        columns_of(at, length, column);
#ifdef __x86_64__
        if (penstock_uses(AVX2)) x = sharpen_avx2(at, column, x, length - channels, channels, share, to);
#endif
        for (; x < length - channels; x++) {
            const uint32_t sum = column[x - channels] + column[x] + column[x + channels] + 4 * at[x] + 6;
            to[x] = mixed((int)(sum * THIRTEENTH >> 16), at[x], share);
        }
        memcpy(to, at, channels);
        memcpy(to + length - channels, at + length - channels, channels);
    }
    free(column);
    return 1;
}

static void fill_pixels(uint8_t *out, long count, int channels, const uint8_t *fill) {
    if (channels == 1 || (fill[0] == fill[1] && fill[1] == fill[2])) {
        memset(out, fill[0], (size_t)count * channels);
        return;
    }
    for (; count > 0; count--)
        for (int c = 0; c < channels; c++) *out++ = fill[c];
}

#ifdef __x86_64__
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
#endif

/* A window (top, left, height, width) of an image under an affine map: the nearest pixel at (ax + by + c, dx + ey + f) in 16.16
 * fixed point, as Pillow takes it; `fill` elsewhere. Of the source there is a part, (rows, columns) from (first_row, first) on, which must
 * hold all that is asked of the image. */
void penstock_affine(const uint8_t *part, long stride, int channels, int first_row, int first, int rows, int columns, uint8_t *out,
                     int top, int left, int height, int width, const double *m, const uint8_t *fill) {
    int64_t fixed[6];
    const double moved[6] = {m[0], m[1], m[2] + m[0] * 0.5 + m[1] * 0.5, m[3], m[4], m[5] + m[3] * 0.5 + m[4] * 0.5};
    for (int i = 0; i < 6; i++) fixed[i] = (int64_t)floor(moved[i] * 65536.0 + 0.5);
    const int dx = (int)fixed[0], dy = (int)fixed[3];
#ifdef __x86_64__
    const int is_near = stride * ((long)first_row + rows) + 3 * ((long)first + columns) < INT32_MAX;
#endif
#define INSIDE(xx, yy) ((uint64_t)(((xx) >> 16) - first) < (uint64_t)columns && (uint64_t)(((yy) >> 16) - first_row) < (uint64_t)rows)
    for (int y = top; y < top + height; y++) {
        int xx = (int)(fixed[2] + y * fixed[1] + left * fixed[0]), yy = (int)(fixed[5] + y * fixed[4] + left * fixed[3]);
        int x = 0, end = width;
        for (; x < end && !INSIDE(xx, yy); x++) xx += dx, yy += dy;
        fill_pixels(out, x, channels, fill);
        out += (size_t)x * channels;
        while (end > x && !INSIDE(xx + (end - 1 - x) * (int64_t)dx, yy + (end - 1 - x) * (int64_t)dy)) end--;
        /* What is inside of a line is in one piece. Three bytes are copied as four, the last of which the next pixel overwrites; but not
         * the last of the line, nor where the line touches the last row, behind which there may be nothing. */
        if (channels == 3) {
            const int64_t last = yy + (end - 1 - x) * (int64_t)dy, lowest = yy > last ? yy : last;
            const int fours = (lowest >> 16) - first_row < rows - 1 ? end - 1 : x;
            const long begin = -(stride * first_row + 3 * (long)first);
            if (dx == 65536 && dy == 0) { /* next to each other there as here: moved, or sheared to the side */
                memcpy(out, part + (begin + stride * (yy >> 16) + 3 * (long)(xx >> 16)), 3 * (size_t)(end - x));
                out += 3 * (size_t)(end - x);
                x = end;
            }
#ifdef __x86_64__
            if (is_near && penstock_uses(AVX2)) {
                const int many = gather_avx2(part + begin, (int)stride, xx, yy, dx, dy, fours - x, out);
                x += many, xx += many * dx, yy += many * dy, out += 3 * (size_t)many;
            }
#endif
            for (; x < fours; x++, xx += dx, yy += dy, out += 3) memcpy(out, part + (begin + stride * (yy >> 16) + 3 * (long)(xx >> 16)), 4);
            for (; x < end; x++, xx += dx, yy += dy, out += 3) memcpy(out, part + (begin + stride * (yy >> 16) + 3 * (long)(xx >> 16)), 3);
        } else {
            for (; x < end; x++, xx += dx, yy += dy)
                for (int c = 0; c < channels; c++)
                    *out++ = part[(size_t)stride * ((yy >> 16) - first_row) + (size_t)((xx >> 16) - first) * channels + c];
        }
        fill_pixels(out, width - x, channels, fill);
        out += (size_t)(width - x) * channels;
    }
#undef INSIDE
}
