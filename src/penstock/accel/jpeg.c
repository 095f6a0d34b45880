/* Baseline JPEG as photos are stored, of which only a part may be wanted: the same pixels as libjpeg-turbo's (accurate integer
 * DCT, triangle filter for chroma), bit for bit. Two things make it fast: one table look-up gives one or two coefficients with run
 * and sign, and what lies outside of the wanted part is only counted through, not transformed.
 *
 * Whatever is rare or wrong (progressive or arithmetic coding, other samplings, several scans, damage of any kind) is left to
 * libjpeg, whose verdict counts: OTHER says so. So nothing is reported or mended here, and reading stops at the first oddity.
 *
 * Rule 1: `data` is hostile. No number of it indexes or sizes anything before it is checked; loops end after as many blocks as
 *         the checked size has; the reader may run into the zeros behind a segment, never past them.
 */

#include "accel.h"

#include <stdlib.h>
#include <string.h>

enum { DONE = 0, OTHER = 1, NO_MEMORY = -1 };

#define LITTLE_ENDIAN_HERE (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
#define SIDE 65500             /* libjpeg's greatest width and height */

#include "jpeg_codes.h"

/* ---- the inverse transform, as libjpeg's "islow": eight columns, or rows, at once */

INLINE uint8_t byte(int value) { return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value; }

typedef int32_t lanes __attribute__((vector_size(32)));

INLINE void one_way(lanes v[8], int shift) {
    lanes z1 = (v[2] + v[6]) * 4433, even2 = z1 - v[6] * 15137, even3 = z1 + v[2] * 6270;
    lanes even0 = (v[0] + v[4]) << 13, even1 = (v[0] - v[4]) << 13;
    const lanes a = even0 + even3, d = even0 - even3, b = even1 + even2, c = even1 - even2;
    lanes t0 = v[7], t1 = v[5], t2 = v[3], t3 = v[1], z5 = (t0 + t2 + t1 + t3) * 9633;
    const lanes z3 = z5 - (t0 + t2) * 16069, z4 = z5 - (t1 + t3) * 3196;
    const lanes y1 = (t0 + t3) * -7373, y2 = (t1 + t2) * -20995;
    t0 = t0 * 2446 + y1 + z3;
    t1 = t1 * 16819 + y2 + z4;
    t2 = t2 * 25172 + y2 + z3;
    t3 = t3 * 12299 + y1 + z4;
    const int half = 1 << (shift - 1);
    v[0] = (a + t3 + half) >> shift;
    v[7] = (a - t3 + half) >> shift;
    v[1] = (b + t2 + half) >> shift;
    v[6] = (b - t2 + half) >> shift;
    v[2] = (c + t1 + half) >> shift;
    v[5] = (c - t1 + half) >> shift;
    v[3] = (d + t0 + half) >> shift;
    v[4] = (d - t0 + half) >> shift;
}

/* Vectors of 16 bits, in which sums of two are made here and in libjpeg, would overflow beyond this; such a block is no photo's. */
#define SANE 16383

/* `last`: the place of the last coefficient in zigzag order. */
typedef uint32_t inverse(const int16_t *from, const int16_t *steps, int last, uint8_t *to, size_t stride);

/* A block that waits for another, where two are done at once. */
struct square {
    const int16_t *from, *steps;
    uint8_t *to;
    size_t stride;
};

typedef uint32_t inverse_two(const struct square *squares);

INLINE int insane(int value) { return value > SANE || value < -SANE; }

static uint32_t inverse_plain(const int16_t *from, const int16_t *steps, int last, uint8_t *to, size_t stride) {
    (void)last;
    union {
        lanes rows[8];
        int32_t at[64];
    } v, w;
    int32_t strange = 0;
    for (int i = 0; i < 64; i++) v.at[i] = from[i] * steps[i];
    for (int i = 0; i < 64; i++) strange |= insane(v.at[i]);
    if (strange) return 1; /* here too products would overflow */
    one_way(v.rows, 11);
    for (int i = 0; i < 64; i++) strange |= insane(v.at[i]);
    if (strange) return 1;
    for (int row = 0; row < 8; row++)
        for (int i = 0; i < 8; i++) w.at[8 * i + row] = v.at[8 * row + i];
    one_way(w.rows, 18);
    for (int row = 0; row < 8; row++)
        for (int i = 0; i < 8; i++) to[stride * row + i] = byte(w.at[8 * i + row] + 128);
    return 0;
}

/* A block of one level. */
static uint32_t level(int dc, uint8_t *to, size_t stride) {
    const int value = ((dc + 4) >> 3) + 128;
    for (int row = 0; row < 8; row++) memset(to + stride * row, byte(value), 8);
    return insane(4 * dc); /* which is what the first pass would come to */
}

/* ---- colours: a row of YCbCr to RGB */

typedef void colours(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *out, int width);

static void colours_plain(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *out, int width) {
    for (int x = 0; x < width; x++) {
        const int blue = cb[x] - 128, red = cr[x] - 128;
        out[3 * x] = byte(y[x] + ((91881 * red + 32768) >> 16));
        out[3 * x + 1] = byte(y[x] + ((-22554 * blue - 46802 * red + 32768) >> 16));
        out[3 * x + 2] = byte(y[x] + ((116130 * blue + 32768) >> 16));
    }
}

/* Chroma of half the width, in samples 0 to count - 1 with one more on either side, to twice as many: three quarters of the
 * nearer one and a quarter of the other. `sums` are the samples (`by` 2) or four times them (`by` 4). */
INLINE void wider(const uint16_t *sums, int count, int by, uint8_t *to) {
    const int left = by == 2 ? 1 : 8, right = by == 2 ? 2 : 7;
    for (int x = 0; x < count; x++) { /* in one word, so that vectors need not be brought into turns */
        const uint16_t one = (uint16_t)(3 * sums[x] + sums[x - 1] + left) >> by, two = (uint16_t)(3 * sums[x] + sums[x + 1] + right) >> by;
        const uint16_t both = LITTLE_ENDIAN_HERE ? (uint16_t)(two << 8 | one) : (uint16_t)(one << 8 | two);
        memcpy(to + 2 * x, &both, 2);
    }
}

typedef void chroma(const uint8_t *near, const uint8_t *far, int first, int count, int most, uint16_t *sums, uint8_t *to);

/* `count` samples from `first` on, of a row whose last one is `most`; with the nearest row above or below, or without. */
INLINE void chroma_row(const uint8_t *near, const uint8_t *far, int first, int count, int most, uint16_t *sums, uint8_t *to) {
    const int before = first > 0 ? first - 1 : 0, after = first + count <= most ? first + count : most;
    for (int x = 0; x < count; x++) sums[x] = (uint16_t)(far ? 3 * near[first + x] + far[first + x] : near[first + x]);
    sums[-1] = (uint16_t)(far ? 3 * near[before] + far[before] : near[before]);
    sums[count] = (uint16_t)(far ? 3 * near[after] + far[after] : near[after]);
    if (far)
        wider(sums, count, 4, to);
    else
        wider(sums, count, 2, to);
}

static void chroma_plain(const uint8_t *near, const uint8_t *far, int first, int count, int most, uint16_t *sums, uint8_t *to) {
    chroma_row(near, far, first, count, most, sums, to);
}

#if defined(__GNUC__) && !defined(PENSTOCK_PLAIN)
#if defined(__x86_64__)
#define X86
#include "jpeg_x86.h"
#elif defined(__aarch64__)
#define ARM
#include "jpeg_arm.h"
#endif
#endif

#include "jpeg_file.h"

struct work {
    struct file *f;
    int top, left, height, width;            /* wanted */
    int first_row, last_row, first, last;    /* MCUs that hold them and what the filter needs beside them */
    int down, across;                        /* MCUs of the whole image */
    int whole;                               /* whether to read on below the wanted part, only to see that all is well */
    uint8_t *scan, *out;
    inverse *transform;
    inverse_two *transform_two; /* or none */
    colours *convert;
    chroma *widen;
    uint16_t *sums;
    uint8_t *blue, *red;
};

/* Rows of the result from `row` up to, not including, `end`. */
static void emit(const struct work *w, int row, int end) {
    const struct part *p = w->f->part;
    const int base = 8 * w->first, turn = w->left & (p->h - 1), most = p[1].columns - 1;
    const int first = w->left / p->h, count = (w->left + w->width - 1) / p->h - first + 1;
    for (; row < end; row++) {
        uint8_t *to = w->out + (size_t)(row - w->top) * w->width * 3;
        const uint8_t *light = p->ring + p->stride * (row & (16 * p->v - 1)) + (w->left - base * p->h);
        if (w->f->parts == 1) {
            for (int x = 0; x < w->width; x++) to[3 * x] = to[3 * x + 1] = to[3 * x + 2] = light[x];
            continue;
        }
        const uint8_t *got[2];
        for (int i = 0; i < 2; i++) {
            const struct part *c = p + 1 + i;
            const int at = row / p->v;
            int other = p->v == 1 ? at : row & 1 ? at + 1 : at - 1;
            other = other < 0 ? 0 : other >= c->rows ? c->rows - 1 : other;
            const uint8_t *near = c->ring + c->stride * (at & 15) - base, *far = c->ring + c->stride * (other & 15) - base;
            got[i] = near + first;
            if (p->h == 2) {
                w->widen(near, p->v == 2 ? far : NULL, first, count, most, w->sums + 8, i ? w->red : w->blue);
                got[i] = (i ? w->red : w->blue) + turn;
            }
        }
        w->convert(light, got[0], got[1], to, w->width);
    }
}

/* The blocks of one MCU to their places. */
INLINE uint32_t transform(const struct work *w, int down, int across, const int16_t *coefficients, const int *last) {
    uint32_t strange = 0;
    struct square waiting[2];
    int count = 0;
    for (int i = 0; i < w->f->parts; i++) {
        const struct part *c = w->f->part + i;
        const int16_t *steps = w->f->steps[c->steps];
        uint8_t *corner = c->ring + c->stride * ((down & 1) * c->v * 8) + 8 * (size_t)(across - w->first) * c->h;
        for (int n = 0; n < c->h * c->v; n++, coefficients += 64, last++) {
            uint8_t *to = corner + 8 * (c->stride * (n >> (c->h - 1)) + (n & (c->h - 1)));
            if (!*last) {
                strange |= level(coefficients[0] * steps[0], to, c->stride);
            } else if (!w->transform_two) {
                strange |= w->transform(coefficients, steps, *last, to, c->stride);
            } else {
                waiting[count] = (struct square){coefficients, steps, to, c->stride};
                if (count) strange |= w->transform_two(waiting);
                count = !count;
            }
        }
    }
    return count ? strange | w->transform(waiting->from, waiting->steps, 63, waiting->to, waiting->stride) : strange;
}

INLINE int decode_with(struct work *w) {
    struct file *f = w->f;
    struct part *p = f->part;
    struct bits b = {0};
    int16_t coefficients[6 * 64] __attribute__((aligned(32))) = {0};
    int last[6];
    uint32_t strange = 0;
    long left = 0, length = 0; /* MCUs in this segment, its bytes */
    int marker = 0, segment = 0, row_done = w->top;
    const int wanted_end = w->top + w->height, mcu_rows = 8 * p->v;
    for (int down = 0; down < w->down; down++) {
        if (down > w->last_row && !w->whole) /* the zeros behind a file that is cut off here are no data */
            return strange || 8 * (b.at - w->scan) - b.count > 8 * length ? OTHER : DONE;
        for (int across = 0; across < w->across; across++) {
            if (!left) {
                if (down || across) { /* all of the last segment must have been taken, and the right marker follow */
                    const long over = 8 * length - (8 * (b.at - w->scan) - b.count);
                    if (over < 0 || over > 7 || marker != 0xD0 + (segment++ & 7)) return OTHER;
                }
                length = unstuff(f, w->scan, &marker);
                b = (struct bits){.at = w->scan};
                left = f->interval ? f->interval : (long)w->down * w->across;
                for (int i = 0; i < f->parts; i++) p[i].dc = 0;
            }
            left--;
            const int wanted = down >= w->first_row && down <= w->last_row && across >= w->first && across <= w->last;
            int16_t *to = coefficients;
            for (int i = 0; i < f->parts; i++) {
                struct part *c = p + i;
                const struct table *dct = c->dct, *act = c->act;
                for (int n = 0; n < c->h * c->v; n++, to += 64)
                    if (wanted ? block(&b, dct, act, &c->dc, to, last + (to - coefficients) / 64) : pass_block(&b, dct, act, &c->dc))
                        return OTHER;
            }
            if (wanted) { /* behind all of the MCU's blocks: what was just stored word by word cannot be loaded at once */
                strange |= transform(w, down, across, coefficients, last);
                memset(coefficients, 0, (to - coefficients) * sizeof *to);
            }
            if (b.at - w->scan > length + 8) return OTHER;
        }
        if (down < w->first_row || down > w->last_row) continue;
        /* The last row of chroma waits for the next one, where two rows share it. */
        int ready = (down + 1) * mcu_rows - (p->v == 2 && down + 1 < w->down);
        ready = ready < wanted_end ? ready : wanted_end;
        if (ready > row_done) {
            emit(w, row_done, ready);
            row_done = ready;
        }
    }
    const long over = 8 * length - (8 * (b.at - w->scan) - b.count);
    return strange || over < 0 || over > 7 || (left && !f->interval) || marker != 0xD9 ? OTHER : DONE;
}

static int decode_plain(struct work *w) { return decode_with(w); }
#ifdef X86
HASWELL static int decode_haswell(struct work *w) { return decode_with(w); }
#endif

/* Whether this machine has the vectors that make it faster than libjpeg. */
int penstock_jpeg_pays(void) {
#ifdef X86
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
#elif defined(__aarch64__) || defined(PENSTOCK_PLAIN)
    return 1;
#else
    return 0;
#endif
}

/* The part (top, left, height, width) of an image that is `rows` x `columns`, as RGB into `out`. DONE, OTHER or NO_MEMORY; where it is not
 * DONE, `out` holds nothing. */
int penstock_jpeg(const uint8_t *data, long size, int rows, int columns, int top, int left, int height, int width, int whole,
                  uint8_t *out) {
    struct file *f = calloc(1, sizeof *f);
    if (!f) return NO_MEMORY;
    f->at = data, f->end = data + size, f->adobe = -1;
    int result = read_markers(f);
    if (result || f->height != rows || f->width != columns || top < 0 || left < 0 || height < 1 || width < 1 ||
        top > rows - height || left > columns - width) {
        free(f);
        return OTHER;
    }
    struct part *p = f->part;
    struct work w = {.f = f, .top = top, .left = left, .height = height, .width = width, .whole = whole, .out = out};
    const int high = 8 * p->v, wide = 8 * p->h, beside = p->h == 2 ? 2 : 0, above = p->v == 2 ? 2 : 0;
    w.down = (rows + high - 1) / high, w.across = (columns + wide - 1) / wide;
    w.first_row = (top > above ? top - above : 0) / high;
    w.last_row = (top + height - 1 + above < rows ? top + height - 1 + above : rows - 1) / high;
    w.first = (left > beside ? left - beside : 0) / wide;
    w.last = (left + width - 1 + beside < columns ? left + width - 1 + beside : columns - 1) / wide;
    w.transform = inverse_plain, w.convert = colours_plain, w.widen = chroma_plain;
    int (*decode)(struct work *) = decode_plain;
#ifdef X86
    if (penstock_jpeg_pays())
        w.transform = inverse_avx2, w.convert = colours_avx2, w.widen = chroma_avx2, decode = decode_haswell;
    if (penstock_jpeg_pays() && penstock_uses(WIDE)) w.transform_two = inverse_two_avx512;
    if (penstock_jpeg_pays() && penstock_uses(PERMUTES)) w.convert = colours_avx512;
#elif defined(ARM)
    w.transform = inverse_neon, w.convert = colours_neon;
#endif
    const size_t blocks = w.last - w.first + 1, row = 8 * blocks * p->h + 64;
    size_t rings = 0;
    for (int i = 0; i < f->parts; i++) {
        p[i].stride = 8 * blocks * p[i].h;
        rings += p[i].stride * 16 * p[i].v;
    }
    if (width < columns || height < rows)
        for (int i = 0; i < f->parts; i++) build_past(p[i].act);
    uint8_t *rest = malloc(rings + 2 * row + sizeof(uint16_t) * row);
    w.scan = malloc((size_t)(f->end - f->at) + BEHIND);
    result = NO_MEMORY;
    if (rest && w.scan) {
        uint8_t *at = rest;
        w.sums = (uint16_t *)at, at += sizeof(uint16_t) * row;
        w.blue = at, at += row;
        w.red = at, at += row;
        for (int i = 0; i < f->parts; i++) p[i].ring = at, at += p[i].stride * 16 * p[i].v;
        result = decode(&w);
    }
    free(w.scan);
    free(rest);
    free(f);
    return result;
}
