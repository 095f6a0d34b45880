/* Pillow's resampling, bit for bit, in vectors; see accel/__init__.py. */

#include "accel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BITS 22 /* Pillow's PRECISION_BITS: 32 - 8 - 2 */

static double bilinear(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

/* For each output position: where its input begins, how many there are, and their weights in fixed point. Where there are vectors for
 * it, `arranged` has the weights as those want them. */
struct weights {
    int taps;
    int *first, *count;
    int32_t *weight;
    struct arranged *arranged;
};

/* Rows of three channels that are made wider at once, and what may be read behind the end of each. */
#define ROWS 4
#define BEHIND 64

#ifdef __x86_64__
#include "resize_x86.h"
#elif defined(__aarch64__) && (!defined(__clang__) || __clang_major__ >= 16) /* an older one knows these products for whole files only */
#include "resize_arm.h"
#else
#include "resize_plain.h"
#endif

static void release(struct weights *w) {
    free(w->first);
    free(w->count);
    free(w->weight);
    forget(w->arranged);
}

/* From `in` positions, of which those from `start` on, `span` of them, become `out`; `mirrored`: from the last to the first;
 * `across`: beside each other, in three channels. */
static int prepare(struct weights *w, int in, double start, double span, int out, int cubic, int mirrored, int across) {
    const double scale = span / out, wide = scale < 1.0 ? 1.0 : scale;
    const double support = (cubic ? 2.0 : 1.0) * wide, step = 1.0 / wide;
    w->taps = (int)ceil(support) * 2 + 1;
    w->first = malloc(sizeof(int) * out);
    w->count = malloc(sizeof(int) * out);
    w->weight = calloc((size_t)out * w->taps, sizeof(int32_t));
    double *k = malloc(sizeof(double) * w->taps);
    if (!w->first || !w->count || !w->weight || !k) {
        free(k);
        return -1;
    }
    for (int place = 0; place < out; place++) {
        const int at = mirrored ? out - 1 - place : place;
        const double center = start + (place + 0.5) * scale;
        int low = (int)(center - support + 0.5), high = (int)(center + support + 0.5);
        if (low < 0) low = 0;
        if (high > in) high = in;
        double sum = 0.0;
        for (int x = 0; x < high - low; x++) {
            const double away = (x + low - center + 0.5) * step;
            k[x] = cubic ? bicubic(away) : bilinear(away);
            sum += k[x];
        }
        for (int x = 0; x < high - low; x++) {
            const double value = sum != 0.0 ? k[x] / sum : k[x];
            w->weight[(size_t)at * w->taps + x] = (int32_t)((value < 0 ? -0.5 : 0.5) + value * (1 << BITS));
        }
        w->first[at] = low;
        w->count[at] = high - low;
    }
    free(k);
    w->arranged = arranged(w, out, across);
    return 0;
}

static inline uint8_t clip(int32_t sum) {
    sum >>= BITS;
    return sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum;
}

static void across3_plain(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], int width, const struct weights *w) {
    for (int x = 0; x < width; x++) {
        const int32_t *k = w->weight + (size_t)x * w->taps;
        for (int i = 0; i < ROWS; i++) {
            const uint8_t *from = row[i] + 3 * (size_t)w->first[x];
            int32_t r = 1 << (BITS - 1), g = r, b = r;
            for (int tap = 0; tap < w->count[x]; tap++, from += 3) {
                r += from[0] * k[tap];
                g += from[1] * k[tap];
                b += from[2] * k[tap];
            }
            out[i][3 * x] = clip(r);
            out[i][3 * x + 1] = clip(g);
            out[i][3 * x + 2] = clip(b);
        }
    }
}

VECTORS static void across1(const uint8_t *row, uint8_t *out, int width, const struct weights *w) {
    for (int x = 0; x < width; x++) {
        const int32_t *k = w->weight + (size_t)x * w->taps;
        int32_t sum = 1 << (BITS - 1);
        for (int tap = 0; tap < w->count[x]; tap++) sum += row[w->first[x] + tap] * k[tap];
        out[x] = clip(sum);
    }
}

/* One row of the result from the rows above each other. */
VECTORS static void down_plain(const uint8_t *rows, size_t stride, uint8_t *out, int length, const int32_t *k, int count,
                               int32_t *sum) {
    for (int i = 0; i < length; i++) sum[i] = 1 << (BITS - 1);
    for (int tap = 0; tap < count; tap++) {
        const uint8_t *row = rows + stride * tap;
        const int32_t weight = k[tap];
        for (int i = 0; i < length; i++) sum[i] += row[i] * weight;
    }
    for (int i = 0; i < length; i++) out[i] = clip(sum[i]);
}

static void down(const uint8_t *rows, size_t stride, uint8_t *out, int length, const struct weights *w, int at, int32_t *sum) {
    const int done = w->arranged ? down_some(rows, stride, out, length, w, at) : 0;
    down_plain(rows + done, stride, out + done, length - done, w->weight + (size_t)at * w->taps, w->count[at], sum);
}

/* All rows of `from` made `width` wide. */
static int wider(const uint8_t *from, size_t stride, int channels, int height, int old_width, const double *box, uint8_t *to, int width,
                 int cubic, int mirrored) {
    struct weights w = {0};
    const size_t length = (size_t)width * channels, old = (size_t)old_width * channels;
    uint8_t *padded = malloc(ROWS * (old + BEHIND)), *unused = malloc(length);
    int failed = !padded || !unused || prepare(&w, old_width, box[1], box[3], width, cubic, mirrored, channels == 3);
    if (!failed && channels == 1)
        for (int row = 0; row < height; row++) across1(from + stride * row, to + length * row, width, &w);
    for (int row = 0; !failed && channels == 3 && row < height; row += ROWS) {
        const uint8_t *rows[ROWS];
        uint8_t *out[ROWS];
        for (int i = 0; i < ROWS; i++) {
            const int at = row + i < height ? row + i : height - 1;
            rows[i] = from + stride * at;
            out[i] = row + i < height ? to + length * at : unused;
            if (stride * (height - 1 - at) < BEHIND) { /* the bytes behind the last row may not be ours */
                uint8_t *copy = padded + i * (old + BEHIND);
                memcpy(copy, from + stride * at, old);
                memset(copy + old, 0, BEHIND);
                rows[i] = copy;
            }
        }
        if (w.arranged)
            across3_some(rows, out, width, &w, ROWS * stride);
        else
            across3_plain(rows, out, width, &w);
    }
    release(&w);
    free(padded);
    free(unused);
    return failed ? -1 : 0;
}

/* All columns of `from`, rows of `length` bytes, made `height` high. */
static int higher(const uint8_t *from, size_t stride, size_t length, int old_height, const double *box, uint8_t *to, int height,
                  int cubic) {
    struct weights w = {0};
    int32_t *sum = malloc(sizeof(int32_t) * length);
    int failed = !sum || prepare(&w, old_height, box[0], box[2], height, cubic, 0, 0);
    for (int row = 0; !failed && row < height; row++)
        down(from + stride * w.first[row], stride, to + length * row, (int)length, &w, row, sum);
    release(&w);
    free(sum);
    return failed ? -1 : 0;
}

/* Resize the box (top, left, height, width) of an image of 1 or 3 interleaved channels into `out`, without gaps; first in the direction
 * that `down_first` says. `mirrored`: and left and right change places. 0, or -1: no memory. */
int penstock_resample(const uint8_t *image, long stride, int channels, int height, int width, const double *box, uint8_t *out,
                      int new_height, int new_width, int cubic, int down_first, int mirrored) {
    const size_t old = (size_t)width * channels, length = (size_t)new_width * channels;
    if (width == new_width && box[3] == width && !mirrored) return higher(image, stride, length, height, box, out, new_height, cubic);
    if (height == new_height && box[2] == height)
        return wider(image, stride, channels, height, width, box, out, new_width, cubic, mirrored);
    uint8_t *middle = malloc(down_first ? old * new_height : length * height);
    int failed = !middle;
    if (!failed && down_first)
        failed = higher(image, stride, old, height, box, middle, new_height, cubic) ||
                 wider(middle, old, channels, new_height, width, box, out, new_width, cubic, mirrored);
    else if (!failed)
        failed = wider(image, stride, channels, height, width, box, middle, new_width, cubic, mirrored) ||
                 higher(middle, length, length, height, box, out, new_height, cubic);
    free(middle);
    return failed ? -1 : 0;
}
