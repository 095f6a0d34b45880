/* Single ops on uint8 images, as Pillow does them: look-up tables, histograms, flips, blends, the nearest pixel under a map. Written so
 * that compilers make vectors of them; plain C without Python's API, see accel/__init__.py. */

#include "accel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define THIRTEENTH 5042 /* of 65,536: exact up to 6,553 */

#ifdef __x86_64__
#include "ops_x86.h"
#elif defined(__aarch64__)
#include "ops_arm.h"
#else
#include "ops_plain.h"
#endif

/* What each value becomes: by one table of 256, or with three channels by one for each, value by value next to each other. */
void penstock_look_up(const uint8_t *image, long count, const uint8_t *table, int tables, uint8_t *restrict out) {
    uint8_t own[3][256];
    if (tables == 1) {
        for (long i = look_up_some(image, count, table, out); i < count; i++) out[i] = table[image[i]];
        return;
    }
    for (int value = 0; value < 256; value++)
        for (int c = 0; c < 3; c++) own[c][value] = table[3 * value + c];
    for (long i = look_up3_some(image, count, (const uint8_t(*)[256])own, out); i + 2 < count; i += 3) {
        out[i] = own[0][image[i]];
        out[i + 1] = own[1][image[i + 1]];
        out[i + 2] = own[2][image[i + 2]];
    }
}

#define WAYS 4

/* A row's values, counted: neighbours apart, so that what was just written is not read again at once. */
INLINE void count_row(const uint8_t *at, int width, const int channels, uint32_t counts[WAYS][3][256]) {
    int x = 0;
    for (; x + WAYS <= width; x += WAYS, at += WAYS * channels)
        for (int way = 0; way < WAYS; way++)
            for (int c = 0; c < channels; c++) counts[way][c][at[way * channels + c]]++;
    for (; x < width; x++, at += channels)
        for (int c = 0; c < channels; c++) counts[0][c][at[c]]++;
}

/* How often each value is there, by channel; of rows that lie `stride` bytes apart. */
static void histogram(const uint8_t *image, long stride, int height, int width, int channels, int64_t *out) {
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

/* Into `table`, 256 x channels: what makes each channel's values about equally frequent, as `tables.equalize` has it. */
void penstock_equalizing(const uint8_t *image, long stride, int height, int width, int channels, uint8_t *table) {
    int64_t counts[3 * 256];
    histogram(image, stride, height, width, channels, counts);
    for (int c = 0; c < channels; c++) {
        const int64_t *count = counts + 256 * c;
        int last = 255;
        while (last && !count[last]) last--;
        int64_t below = 0;
        for (int value = 0; value < last; value++) below += count[value];
        const int64_t step = below / 255;
        below = step / 2;
        for (int value = 0; value < 256; below += count[value++]) {
            const int64_t spread = step ? below / step : value;
            table[channels * value + c] = (uint8_t)(spread < 255 ? spread : 255);
        }
    }
}

#define SPAN 96 /* bytes: pixels of three channels in whole vectors */

/* The least and the greatest value of each of three channels; of rows that lie `stride` bytes apart. */
VECTORS static void extremes(const uint8_t *image, long stride, int height, int width, uint8_t *out) {
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

/* Into `table`, 256 x 3: what stretches each channel's values to all of them, as `tables.autocontrast` has it. */
void penstock_stretching(const uint8_t *image, long stride, int height, int width, uint8_t *table) {
    uint8_t ends[6];
    extremes(image, stride, height, width, ends);
    for (int c = 0; c < 3; c++) {
        const int wide = ends[3 + c] - ends[c];
        const double scale = 255.0 / (wide > 0 ? wide : 255), offset = -(double)ends[c] * scale;
        for (int value = 0; value < 256; value++) {
            const double found = wide > 0 ? value * scale + offset : value;
            table[3 * value + c] = (uint8_t)(found < 0 ? 0 : found > 255 ? 255 : found);
        }
    }
}

/* Whether a blend is rounded once, or the product and then the sum: compilers take one instruction for both where all processors of a kind
 * have it, so what Pillow itself does depends on what it was built for. */
#ifdef __aarch64__
#define FUSES 1
#else
#define FUSES 0
#endif

int penstock_fuses(void) { return FUSES; }

/* Pillow's grey of a pixel, and its blend: cut towards 0 in single precision. */
static inline int grey(const uint8_t *p) { return (p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16; }

static inline uint8_t mixed(int from, int to, float share) {
    float value = FUSES ? fmaf(share, (float)(to - from), (float)from) : (float)from + share * (float)(to - from);
    value = value < 0.0f ? 0.0f : value;
    return (uint8_t)(int)(value > 255.0f ? 255.0f : value);
}

#define STRETCH (1 << 20) /* pixels whose greys vectors can add in 32 bits */

/* The sum of the greys of an image of three channels. */
int64_t penstock_grey_sum(const uint8_t *image, long stride, int height, int width) {
    int64_t sum = 0;
    for (int row = 0; row < height; row++) {
        const uint8_t *from = image + (size_t)stride * row;
        for (int left = width; left > 0; left -= STRETCH, from += 3 * (size_t)STRETCH) {
            const int some = left < STRETCH ? left : STRETCH;
            for (int x = grey_sum_some(from, some, &sum); x < some; x++) sum += grey(from + 3 * (size_t)x);
        }
    }
    return sum;
}

/* Each pixel of three channels blended with its own grey. */
void penstock_saturate(const uint8_t *image, long stride, int height, int width, float share, uint8_t *out) {
    for (int row = 0; row < height; row++) {
        const uint8_t *from = image + (size_t)stride * row;
        int x = saturate_some(from, width, share, out);
        from += 3 * (size_t)x;
        out += 3 * (size_t)x;
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
        columns_of(at, length, column);
        for (int x = sharpen_some(at, column, channels, length - channels, channels, share, to); x < length - channels; x++) {
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

/* A window (top, left, height, width) of an image under an affine map: the nearest pixel at (ax + by + c, dx + ey + f) in 16.16
 * fixed point, as Pillow takes it; `fill` elsewhere. Of the source there is a part, (rows, columns) from (first_row, first) on, which must
 * hold all that is asked of the image. */
void penstock_affine(const uint8_t *part, long stride, int channels, int first_row, int first, int rows, int columns, uint8_t *out,
                     int top, int left, int height, int width, const double *m, const uint8_t *fill) {
    int64_t fixed[6];
    const double moved[6] = {m[0], m[1], m[2] + m[0] * 0.5 + m[1] * 0.5, m[3], m[4], m[5] + m[3] * 0.5 + m[4] * 0.5};
    for (int i = 0; i < 6; i++) fixed[i] = (int64_t)floor(moved[i] * 65536.0 + 0.5);
    const int dx = (int)fixed[0], dy = (int)fixed[3];
    const int is_near = stride * ((long)first_row + rows) + 3 * ((long)first + columns) < INT32_MAX;
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
            if (is_near) {
                const int many = gather_some(part + begin, (int)stride, xx, yy, dx, dy, fours - x, out);
                x += many, xx += many * dx, yy += many * dy, out += 3 * (size_t)many;
            }
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

/* Mirror each row. Pixels of three bytes are copied as four: the fourth byte lies in the same row, and the next copy overwrites it. */
void penstock_flip(const uint8_t *image, long stride, int channels, int height, int width, uint8_t *out) {
    for (int row = 0; row < height; row++, out += (size_t)width * channels) {
        const uint8_t *from = image + (size_t)stride * row;
        if (channels == 1) {
            for (int x = 0; x < width; x++) out[x] = from[width - 1 - x];
            continue;
        }
        if (width > 0) memcpy(out, from + 3 * (size_t)(width - 1), 3);
        for (int x = 1; x + 1 < width; x++) memcpy(out + 3 * (size_t)x, from + 3 * (size_t)(width - 1 - x), 4);
        if (width > 1) memcpy(out + 3 * (size_t)(width - 1), from, 3);
    }
}

/* Pixels of three channels to three planes. */
VECTORS void penstock_split(const uint8_t *image, long stride, int height, int width, uint8_t *restrict out) {
    const size_t plane = (size_t)height * width;
    for (int row = 0; row < height; row++) {
        const uint8_t *restrict from = image + (size_t)stride * row;
        uint8_t *restrict r = out + (size_t)row * width, *restrict g = r + plane, *restrict b = g + plane;
        for (int x = 0; x < width; x++) {
            r[x] = from[3 * x];
            g[x] = from[3 * x + 1];
            b[x] = from[3 * x + 2];
        }
    }
}
