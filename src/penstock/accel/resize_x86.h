/* The parts of resize.c in vectors of 32 and of 64 bytes: what resize_plain.h has, done. */

#include <immintrin.h>

/* Five pixels of the result beside each other, of three channels, are fifteen sums in a vector of 64 bytes. What they are made of lies close together
 * in a row, seldom in more than `SEEN` bytes: as words two vectors, or one of bytes. A permutation takes from them what is needed for two taps of
 * each pixel; which those are is the same for all rows. */
#define FIVE 5
#define SEEN 64
struct five {
    int x, from, pairs; /* the first of the pixels, of what they are made of, and how often two taps */
};
struct two_taps {
    union {
        uint16_t words[32]; /* which of them */
        uint8_t bytes[64];  /* the same at every second place, for processors that take bytes from anywhere: 0 between them comes for nothing */
    };
    int32_t high[16], low[16];
};

/* For vectors that multiply words, and add two products, a weight is split into a high and a low part, two neighbours in one number. */
#define LOW_BITS 11
struct arranged {
    int pairs;
    int32_t *high, *low;
    int fives;
    struct five *five;
    struct two_taps *two_taps; /* as many for each five as there are pairs at most */
};

static void forget(struct arranged *v) {
    if (!v) return;
    free(v->high);
    free(v->low);
    free(v->five);
    free(v->two_taps);
    free(v);
}

static void split(struct arranged *v, const struct weights *w, int out) {
    for (int at = 0; at < out; at++)
        for (int pair = 0; pair < v->pairs; pair++) {
            const int32_t *k = w->weight + (size_t)at * w->taps + 2 * pair, one = k[0], two = 2 * pair + 1 < w->taps ? k[1] : 0;
            const size_t to = (size_t)at * v->pairs + pair;
            v->high[to] = (int32_t)((uint32_t)(two >> LOW_BITS) << 16 | ((one >> LOW_BITS) & 0xFFFF));
            v->low[to] = (int32_t)((uint32_t)(two & ((1 << LOW_BITS) - 1)) << 16 | (one & ((1 << LOW_BITS) - 1)));
        }
}

/* Arranges the weights by fives, if what those are made of lies close enough. */
static void by_fives(struct arranged *v, const struct weights *w, int width) {
    const int fives = (width + FIVE - 1) / FIVE;
    if (width < FIVE || !(v->five = malloc(sizeof(struct five) * fives))) return;
    for (int i = 0; i < fives; i++) {
        const int x = FIVE * i + FIVE <= width ? FIVE * i : width - FIVE; /* the last ones may have some of those before */
        int from = w->first[x], to = 0, most = 1;
        for (int p = x; p < x + FIVE; p++) {
            if (w->first[p] < from) from = w->first[p];
            if (w->first[p] + w->count[p] > to) to = w->first[p] + w->count[p];
            if (w->count[p] > most) most = w->count[p];
        }
        if (3 * (to - from) > SEEN) return;
        v->five[i] = (struct five){x, from, (most + 1) / 2};
    }
    if (!(v->two_taps = aligned_alloc(64, sizeof(struct two_taps) * fives * v->pairs))) return;
    const int permutes = penstock_uses(PERMUTES);
    for (int i = 0; i < fives; i++)
        for (int pair = 0; pair < v->five[i].pairs; pair++) {
            struct two_taps *taps = v->two_taps + (size_t)i * v->pairs + pair;
            *taps = (struct two_taps){0};
            for (int p = 0, sum = 0; p < FIVE; p++) {
                const int x = v->five[i].x + p;
                const unsigned word = 3 * (w->first[x] - v->five[i].from + 2 * pair);
                const int32_t high = v->high[(size_t)x * v->pairs + pair], low = v->low[(size_t)x * v->pairs + pair];
                for (int c = 0; c < 3; c++, sum++) {
                    for (int tap = 0; tap < 2; tap++) { /* beyond a pixel's taps weights are 0 */
                        const uint8_t place = (word + c + 3 * tap) % SEEN;
                        if (permutes)
                            taps->bytes[2 * (2 * sum + tap)] = place;
                        else
                            taps->words[2 * sum + tap] = place;
                    }
                    taps->high[sum] = high;
                    taps->low[sum] = low;
                }
            }
        }
    v->fives = fives;
}

static struct arranged *arranged(const struct weights *w, int out, int across) {
    struct arranged *v = penstock_uses(AVX2) ? calloc(1, sizeof *v) : NULL;
    if (!v) return NULL;
    v->pairs = (w->taps + 1) / 2;
    v->high = malloc((size_t)out * v->pairs * sizeof(int32_t));
    v->low = malloc((size_t)out * v->pairs * sizeof(int32_t));
    if (!v->high || !v->low) {
        forget(v);
        return NULL;
    }
    split(v, w, out);
    if (across && penstock_uses(DOTS)) by_fives(v, w, out);
    return v;
}

#define HASWELL __attribute__((target("avx2")))
#define HASWELL_PART HASWELL static inline __attribute__((always_inline))

/* The sum, and of each two words of `x` and `k` beside each other the products. */
HASWELL_PART __m256i plus(__m256i sum, __m256i x, __m256i k) { return _mm256_add_epi32(sum, _mm256_madd_epi16(x, k)); }

/* Eight bytes of one row, and of another. */
HASWELL_PART __m256i both(const uint8_t *one, const uint8_t *two) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)one)),
                                   _mm_loadl_epi64((const __m128i *)two), 1);
}

HASWELL_PART __m256i total(__m256i high, __m256i low) {
    const __m256i half = _mm256_set1_epi32(1 << (BITS - 1));
    return _mm256_srai_epi32(_mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS), low), half), BITS);
}

/* Column `x` of the result in four rows: in the lower half rows 0 and 2, in the upper one 1 and 3, four words each. */
HASWELL_PART __m256i column(const uint8_t *const row[ROWS], int x, const struct weights *w) {
    /* Two pixels of three bytes to words: both reds, both greens, both blues. */
    const __m256i turn = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5,
                                          -1, -1, -1, -1, -1);
    const struct arranged *v = w->arranged;
    const int32_t *high = v->high + (size_t)x * v->pairs, *low = v->low + (size_t)x * v->pairs;
    const size_t from = 3 * (size_t)w->first[x];
    const uint8_t *a = row[0] + from, *b = row[1] + from, *c = row[2] + from, *d = row[3] + from;
    __m256i h0 = _mm256_setzero_si256(), l0 = h0, h1 = h0, l1 = h0;
    for (int pair = 0; 2 * pair < w->count[x]; pair++, a += 6, b += 6, c += 6, d += 6) {
        const __m256i first = _mm256_shuffle_epi8(both(a, b), turn), second = _mm256_shuffle_epi8(both(c, d), turn);
        const __m256i kh = _mm256_set1_epi32(high[pair]), kl = _mm256_set1_epi32(low[pair]);
        h0 = plus(h0, first, kh);
        l0 = plus(l0, first, kl);
        h1 = plus(h1, second, kh);
        l1 = plus(l1, second, kl);
    }
    return _mm256_packs_epi32(total(h0, l0), total(h1, l1));
}

HASWELL static void across3_avx2(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], int width, const struct weights *w) {
    const __m256i close = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13,
                                           14, -1, -1, -1, -1);
    int x = 0;
    for (; 3 * x + 16 <= 3 * width; x += 4) { /* sixteen bytes of which the last four are written again */
        /* Saturating packs clip; then four bytes of each row and column, which are brought together by rows. */
        const __m256 first = _mm256_castsi256_ps(_mm256_packus_epi16(column(row, x, w), column(row, x + 1, w)));
        const __m256 second = _mm256_castsi256_ps(_mm256_packus_epi16(column(row, x + 2, w), column(row, x + 3, w)));
        const __m256i upper = _mm256_shuffle_epi8(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0x88)), close);
        const __m256i lower = _mm256_shuffle_epi8(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xDD)), close);
        _mm_storeu_si128((__m128i *)(out[0] + 3 * x), _mm256_castsi256_si128(upper));
        _mm_storeu_si128((__m128i *)(out[1] + 3 * x), _mm256_extracti128_si256(upper, 1));
        _mm_storeu_si128((__m128i *)(out[2] + 3 * x), _mm256_castsi256_si128(lower));
        _mm_storeu_si128((__m128i *)(out[3] + 3 * x), _mm256_extracti128_si256(lower, 1));
    }
    for (; x < width; x++) {
        const __m256i words = column(row, x, w), found = _mm256_packus_epi16(words, words);
        const uint32_t pixel[4] = {(uint32_t)_mm256_extract_epi32(found, 0), (uint32_t)_mm256_extract_epi32(found, 4),
                                   (uint32_t)_mm256_extract_epi32(found, 1), (uint32_t)_mm256_extract_epi32(found, 5)};
        for (int i = 0; i < 4; i++) memcpy(out[i] + 3 * x, pixel + i, 3);
    }
}

/* The result's bytes from `x` on, as many as come in thirty-twos; where they end. Rows two by two become words beside each other. */
HASWELL static int down_avx2(const uint8_t *rows, size_t stride, uint8_t *out, int x, int length, const int32_t *high, const int32_t *low,
                             int count) {
    const __m256i none = _mm256_setzero_si256();
    for (; x + 32 <= length; x += 32) {
        __m256i h0 = none, h1 = none, h2 = none, h3 = none, l0 = none, l1 = none, l2 = none, l3 = none;
        for (int tap = 0; tap < count; tap += 2) {
            const uint8_t *at = rows + stride * tap + x;
            const __m256i one = _mm256_loadu_si256((const __m256i *)at);
            const __m256i two = _mm256_loadu_si256((const __m256i *)(tap + 1 < count ? at + stride : at)); /* whose weight is 0 */
            const __m256i left = _mm256_unpacklo_epi8(one, two), right = _mm256_unpackhi_epi8(one, two);
            const __m256i w0 = _mm256_unpacklo_epi8(left, none), w1 = _mm256_unpackhi_epi8(left, none);
            const __m256i w2 = _mm256_unpacklo_epi8(right, none), w3 = _mm256_unpackhi_epi8(right, none);
            const __m256i kh = _mm256_set1_epi32(high[tap / 2]), kl = _mm256_set1_epi32(low[tap / 2]);
            h0 = plus(h0, w0, kh), l0 = plus(l0, w0, kl);
            h1 = plus(h1, w1, kh), l1 = plus(l1, w1, kl);
            h2 = plus(h2, w2, kh), l2 = plus(l2, w2, kl);
            h3 = plus(h3, w3, kh), l3 = plus(l3, w3, kl);
        }
        const __m256i first = _mm256_packs_epi32(total(h0, l0), total(h1, l1)), second = _mm256_packs_epi32(total(h2, l2), total(h3, l3));
        _mm256_storeu_si256((__m256i *)(out + x), _mm256_packus_epi16(first, second));
    }
    return x;
}

/* ---- vectors of 64 bytes */

WITH_DOTS static inline __attribute__((always_inline)) __m512i total_wide(__m512i high, __m512i low) {
    const __m512i half = _mm512_set1_epi32(1 << (BITS - 1));
    return _mm512_srai_epi32(_mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, LOW_BITS), low), half), BITS);
}

/* What five pixels are made of, and two taps of each of them: in words from the start, or made words of as they are taken. */
struct seen {
    __m512i near, far;
};

WITH_DOTS static inline struct seen seen_words(const uint8_t *at) {
    return (struct seen){_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)at)),
                         _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(at + 32)))};
}

WITH_DOTS static inline __m512i two_words(struct seen from, const struct two_taps *taps) {
    return _mm512_permutex2var_epi16(from.near, _mm512_load_si512(taps->words), from.far);
}

WITH_PERMUTES static inline struct seen seen_bytes(const uint8_t *at) { return (struct seen){_mm512_loadu_si512(at), _mm512_setzero_si512()}; }

WITH_PERMUTES static inline __m512i two_bytes(struct seen from, const struct two_taps *taps) {
    return _mm512_maskz_permutexvar_epi8(0x5555555555555555, _mm512_load_si512(taps->bytes), from.near);
}

/* `next`: where the rows lie that come next, from these. What was kept long ago is in no cache. */
#define ACROSS3(TARGET, name, seen_at, two_of) \
    TARGET static void name(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], const struct weights *w, size_t next) { \
        const __m512i none = _mm512_setzero_si512(); \
        const struct arranged *v = w->arranged; \
        for (int i = 0; i < v->fives; i++) { \
            const struct five *five = v->five + i; \
            const struct two_taps *taps = v->two_taps + (size_t)i * v->pairs; \
            __m512i kh = _mm512_load_si512(taps->high), kl = _mm512_load_si512(taps->low), high[ROWS], low[ROWS]; \
            struct seen seen[ROWS]; \
            for (int r = 0; r < ROWS; r++) { \
                const uint8_t *at = row[r] + 3 * (size_t)five->from; \
                _mm_prefetch((const char *)at + next, _MM_HINT_T0); \
                seen[r] = seen_at(at); \
                const __m512i two = two_of(seen[r], taps); \
                high[r] = _mm512_madd_epi16(two, kh); \
                low[r] = _mm512_madd_epi16(two, kl); \
            } \
            for (int pair = 1; pair < five->pairs; pair++) { \
                kh = _mm512_load_si512(taps[pair].high), kl = _mm512_load_si512(taps[pair].low); \
                for (int r = 0; r < ROWS; r++) { \
                    const __m512i two = two_of(seen[r], taps + pair); \
                    high[r] = _mm512_dpwssd_epi32(high[r], two, kh); \
                    low[r] = _mm512_dpwssd_epi32(low[r], two, kl); \
                } \
            } \
            for (int r = 0; r < ROWS; r++) { \
                const __m128i bytes = _mm512_cvtusepi32_epi8(_mm512_max_epi32(total_wide(high[r], low[r]), none)); \
                _mm_mask_storeu_epi8(out[r] + 3 * five->x, 0x7FFF, bytes); \
            } \
        } \
    }

ACROSS3(WITH_DOTS, across3_wide, seen_words, two_words)
ACROSS3(WITH_PERMUTES, across3_permuted, seen_bytes, two_bytes)

/* As `down_avx2`, in sixty-fours. */
WITH_DOTS static int down_wide(const uint8_t *rows, size_t stride, uint8_t *out, int length, const int32_t *high, const int32_t *low,
                            int count) {
    const __m512i none = _mm512_setzero_si512();
    int x = 0;
    for (; x + 64 <= length; x += 64) {
        __m512i h[4] = {none, none, none, none}, l[4] = {none, none, none, none};
        for (int tap = 0; tap < count; tap += 2) {
            const uint8_t *at = rows + stride * tap + x;
            const __m512i one = _mm512_loadu_si512(at), two = _mm512_loadu_si512(tap + 1 < count ? at + stride : at);
            const __m512i left = _mm512_unpacklo_epi8(one, two), right = _mm512_unpackhi_epi8(one, two);
            const __m512i words[4] = {_mm512_unpacklo_epi8(left, none), _mm512_unpackhi_epi8(left, none),
                                      _mm512_unpacklo_epi8(right, none), _mm512_unpackhi_epi8(right, none)};
            const __m512i kh = _mm512_set1_epi32(high[tap / 2]), kl = _mm512_set1_epi32(low[tap / 2]);
            for (int i = 0; i < 4; i++) {
                h[i] = _mm512_dpwssd_epi32(h[i], words[i], kh);
                l[i] = _mm512_dpwssd_epi32(l[i], words[i], kl);
            }
        }
        const __m512i first = _mm512_packs_epi32(total_wide(h[0], l[0]), total_wide(h[1], l[1]));
        const __m512i second = _mm512_packs_epi32(total_wide(h[2], l[2]), total_wide(h[3], l[3]));
        _mm512_storeu_si512(out + x, _mm512_packus_epi16(first, second));
    }
    return x;
}

static void across3_some(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], int width, const struct weights *w, size_t next) {
    if (w->arranged->fives && penstock_uses(PERMUTES))
        across3_permuted(row, out, w, next);
    else if (w->arranged->fives)
        across3_wide(row, out, w, next);
    else
        across3_avx2(row, out, width, w);
}

static int down_some(const uint8_t *rows, size_t stride, uint8_t *out, int length, const struct weights *w, int at) {
    const struct arranged *v = w->arranged;
    const int32_t *high = v->high + (size_t)at * v->pairs, *low = v->low + (size_t)at * v->pairs;
    const int done = penstock_uses(DOTS) ? down_wide(rows, stride, out, length, high, low, w->count[at]) : 0;
    return down_avx2(rows, stride, out, done, length, high, low, w->count[at]);
}
