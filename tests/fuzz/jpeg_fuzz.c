/* A libFuzzer target for the JPEG decoder (accel/jpeg.c): `tests/fuzz/jpeg_fuzz.py` builds and runs it.
 *
 * An input is a JPEG file. It is decoded whole, and in part, into memory of just that size. Beside what the sanitizers find it is an error if
 *   - a part of a file that is decoded whole is refused, or has other pixels;
 *   - with WITH_LIBJPEG: libjpeg refuses or warns about a file that is decoded, or makes other pixels of it.
 *
 * The mutator knows segments. Byte by byte, hardly any change to a Huffman table leaves one: counts and symbols must agree. */

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WITH_LIBJPEG
#include <jpeglib.h>
#endif

int penstock_jpeg(const uint8_t *data, long size, int rows, int columns, int top, int left, int height, int width, int whole, uint8_t *out);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

#define MOST_PIXELS (1 << 15)
#define DONE 0

/* ---- random numbers, from a seed */

static uint64_t state;

static uint32_t below(uint32_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return n ? (uint32_t)((state >> 33) % n) : 0;
}

static void fail(const char *what) {
    fprintf(stderr, "jpeg_fuzz: %s\n", what);
    abort();
}

/* ---- files that were decoded last, to begin with again: nearly every change makes a file that is refused, and of those the corpus is full */

#define GOOD 64
#define GOOD_BYTES 4096

static struct {
    uint8_t data[GOOD_BYTES];
    size_t size;
} good[GOOD];
static uint32_t good_count;

static void keep_good(const uint8_t *data, size_t size) {
    if (size > GOOD_BYTES) return;
    const uint32_t at = good_count < GOOD ? good_count++ : below(GOOD);
    memcpy(good[at].data, data, good[at].size = size);
}

/* ---- the target */

/* Where a segment's marker (0xFF) is, from `at` on; -1: there is none before the scan. */
static long next_segment(const uint8_t *data, long size, long at) {
    return at + 4 <= size && data[at] == 0xFF && data[at + 1] != 0xDA && data[at + 1] != 0xD9 ? at : -1;
}

static long after(const uint8_t *data, long at) { return at + 2 + (data[at + 2] << 8 | data[at + 3]); }

static int size_of(const uint8_t *data, long size, int *rows, int *columns) {
    if (size < 4 || data[0] != 0xFF || data[1] != 0xD8) return 0;
    for (long at = 2; (at = next_segment(data, size, at)) >= 0; at = after(data, at))
        if ((data[at + 1] == 0xC0 || data[at + 1] == 0xC1) && at + 9 <= size) {
            *rows = data[at + 5] << 8 | data[at + 6], *columns = data[at + 7] << 8 | data[at + 8];
            return *rows > 0 && *columns > 0 && *rows * (int64_t)*columns <= MOST_PIXELS;
        }
    return 0;
}

#ifdef WITH_LIBJPEG
struct handler {
    struct jpeg_error_mgr base;
    jmp_buf back;
};

static void give_up(j_common_ptr c) { longjmp(((struct handler *)c->err)->back, 1); }
static void say_nothing(j_common_ptr c) { (void)c; }

/* Pixels, or NULL where it refuses or warns. */
static uint8_t *by_libjpeg(const uint8_t *data, size_t size, int rows, int columns) {
    struct jpeg_decompress_struct c;
    struct handler h;
    uint8_t *volatile out = malloc((size_t)rows * columns * 3);
    c.err = jpeg_std_error(&h.base);
    h.base.error_exit = give_up, h.base.output_message = say_nothing;
    if (setjmp(h.back)) {
        jpeg_destroy_decompress(&c);
        free(out);
        return NULL;
    }
    jpeg_create_decompress(&c);
    jpeg_mem_src(&c, data, size);
    jpeg_read_header(&c, TRUE);
    c.out_color_space = JCS_RGB, c.dct_method = JDCT_ISLOW;
    jpeg_start_decompress(&c);
    if ((int)c.output_height != rows || (int)c.output_width != columns) give_up((j_common_ptr)&c);
    while (c.output_scanline < c.output_height) {
        JSAMPROW row = out + (size_t)c.output_scanline * columns * 3;
        jpeg_read_scanlines(&c, &row, 1);
    }
    jpeg_finish_decompress(&c);
    if (h.base.num_warnings) give_up((j_common_ptr)&c);
    jpeg_destroy_decompress(&c);
    return out;
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int rows, columns;
    if (!size_of(data, (long)size, &rows, &columns)) return 0;
    state = 0xCBF29CE484222325ULL;
    for (size_t i = 0; i < size; i++) state = (state ^ data[i]) * 0x100000001B3ULL;

    uint8_t *all = malloc((size_t)rows * columns * 3);
    const int whole = penstock_jpeg(data, (long)size, rows, columns, 0, 0, rows, columns, 1, all);
    for (int i = 0; i < 2; i++) {
        const int height = 1 + (int)below(rows), width = 1 + (int)below(columns), to_the_end = i;
        const int top = (int)below(rows - height + 1), left = (int)below(columns - width + 1);
        uint8_t *part = malloc((size_t)height * width * 3);
        const int found = penstock_jpeg(data, (long)size, rows, columns, top, left, height, width, to_the_end, part);
        if (whole == DONE && found != DONE) fail("a part is refused of a file that is decoded whole");
        for (int row = 0; whole == DONE && row < height; row++)
            if (memcmp(part + (size_t)row * width * 3, all + ((size_t)(top + row) * columns + left) * 3, (size_t)width * 3))
                fail("a part has other pixels than the whole");
        free(part);
    }
    if (whole == DONE) keep_good(data, size);
#ifdef WITH_LIBJPEG
    if (whole == DONE) {
        uint8_t *theirs = by_libjpeg(data, size, rows, columns);
        if (!theirs) fail("libjpeg refuses a file that is decoded");
        if (memcmp(theirs, all, (size_t)rows * columns * 3)) fail("libjpeg makes other pixels");
        free(theirs);
    }
#endif
    free(all);
    return 0;
}

/* ---- the mutator */

#define SEGMENTS 64

struct file {
    uint8_t *data;
    size_t size, most;
    long segment[SEGMENTS];
    int count;
    long scan; /* where the segments end */
};

static int parse(struct file *f) {
    f->count = 0, f->scan = 2;
    if (f->size < 4 || f->data[0] != 0xFF || f->data[1] != 0xD8) return 0;
    for (long at = 2; f->count < SEGMENTS && (at = next_segment(f->data, (long)f->size, at)) >= 0; at = f->scan) {
        if (after(f->data, at) > (long)f->size || after(f->data, at) < at + 4) break;
        f->segment[f->count++] = at;
        f->scan = after(f->data, at);
    }
    return f->count;
}

/* `cut` bytes at a place become `length` others, as far as there is room. */
static void replace(struct file *f, long at, long cut, const uint8_t *with, long length) {
    if (f->size - cut + length > f->most) return;
    memmove(f->data + at + length, f->data + at + cut, f->size - at - cut);
    if (length) memcpy(f->data + at, with, length);
    f->size += length - cut;
}

static void put_segment(struct file *f, long at, long cut, int marker, const uint8_t *body, long length) {
    uint8_t segment[4 + 65533];
    if (length > 65533) return;
    segment[0] = 0xFF, segment[1] = (uint8_t)marker;
    segment[2] = (uint8_t)((length + 2) >> 8), segment[3] = (uint8_t)(length + 2);
    memcpy(segment + 4, body, length);
    replace(f, at, cut, segment, 4 + length);
}

/* One with this marker, or any with 0; -1: there is none. */
static long any_segment(const struct file *f, int marker) {
    for (int tries = 0; tries < 20 && f->count; tries++) {
        const long at = f->segment[below(f->count)];
        if (!marker || f->data[at + 1] == marker) return at;
    }
    return -1;
}

/* A table in which counts and symbols agree, changed: a code made longer or shorter, added or taken out; symbols exchanged or made others; the last code
 * made all ones; or one too many of a length. */
static void mutate_codes(struct file *f) {
    const long at = any_segment(f, 0xC4);
    if (at < 0) return;
    const long end = after(f->data, at), length = end - at - 4;
    uint8_t body[17 + 16 * 255];
    if (length < 17 || length > (long)sizeof body) return;
    memset(body, 0, sizeof body);
    memcpy(body, f->data + at + 4, length);
    uint8_t *counts = body + 1, *symbols = body + 17;
    int total = 0;
    for (int i = 0; i < 16; i++) total += counts[i];
    if (total > length - 17) total = (int)length - 17;
    int a = (int)below(16), b = (int)below(16);
    switch (below(8)) {
    case 0: /* longer or shorter */
        if (counts[a] && counts[b] < 255) counts[a]--, counts[b]++;
        break;
    case 1:
        if (counts[a] < 255 && total < 256) counts[a]++, symbols[total++] = (uint8_t)below(256);
        break;
    case 2:
        if (counts[a] && total) counts[a]--, total--;
        break;
    case 3:
        if (total > 1) {
            const int x = (int)below(total), y = (int)below(total), kept = symbols[x];
            symbols[x] = symbols[y], symbols[y] = (uint8_t)kept;
        }
        break;
    case 4:
        if (total) symbols[below(total)] = (uint8_t)(below(2) ? below(256) : (uint32_t[]){0, 0xF0, 0x0B, 0x0C, 0x1B, 0xFF}[below(6)]);
        break;
    case 5: /* full up to this length: the last code is all ones, or there is one too many */
    case 6: {
        long code = 0;
        for (int i = 0; i <= a; i++) code = 2 * code + counts[i];
        long missing = (2L << a) - code + (long)below(3) - 1;
        if (missing > 0 && counts[a] + missing < 256 && total + missing <= 256)
            for (counts[a] = (uint8_t)(counts[a] + missing); missing; missing--) symbols[total++] = (uint8_t)below(11);
        break;
    }
    default: /* of another kind or number */
        body[0] = (uint8_t)(below(2) ? body[0] ^ 0x10 : (body[0] & 0xF0) | below(5));
    }
    put_segment(f, at, end - at, 0xC4, body, 17 + total);
}

static const uint8_t APP[][14] = {"ICC_PROFILE\0\1", "JFIF\0\1\2\0\0\1\0\1\0", "Adobe\0d\0\0\0\0\0", "Exif\0\0"};

static void mutate_segment(struct file *f) {
    static const int MARKERS[] = {0xDB, 0xC0, 0xC1, 0xC2, 0xC4, 0xDD, 0xE0, 0xE1, 0xE2, 0xEE, 0xFE, 0xDC, 0xCC, 0xF0};
    const long at = any_segment(f, below(3) ? 0 : MARKERS[below(6)]);
    if (at < 0) return;
    const long end = after(f->data, at), to = f->segment[below(f->count)];
    uint8_t body[600];
    long length = end - at - 4;
    if (length > 500) return;
    memcpy(body, f->data + at + 4, length);
    const int marker = f->data[at + 1];
    switch (below(8)) {
    case 0: /* doubled, somewhere else */
        put_segment(f, to, 0, marker, body, length);
        break;
    case 1:
        replace(f, at, end - at, NULL, 0);
        break;
    case 2: /* one byte, near to what it was or at an end */
        if (length) body[below(length)] = (uint8_t)(below(2) ? (uint32_t[]){0, 1, 2, 8, 16, 0x11, 0x22, 255}[below(8)] : below(256));
        put_segment(f, at, end - at, marker, body, length);
        break;
    case 3: /* longer or shorter than what it says */
        length = below(2) && length ? length - 1 : length + 1 + (long)below(8);
        put_segment(f, at, end - at, marker, body, length);
        break;
    case 4:
        put_segment(f, at, end - at, MARKERS[below(14)], body, length);
        break;
    case 5: { /* restarts */
        const uint8_t interval[2] = {0, (uint8_t)below(9)};
        put_segment(f, to, 0, 0xDD, interval, 2);
        break;
    }
    case 6: { /* what others write there: profiles in several pieces, some of which are missing or wrong */
        const int which = (int)below(4);
        memcpy(body, APP[which], 14);
        if (!which) body[12] = (uint8_t)below(4), body[13] = (uint8_t)below(4);
        if (which == 2) body[11] = (uint8_t)below(4);
        put_segment(f, to, 0, (int[]){0xE2, 0xE0, 0xEE, 0xE1}[which], body, below(3) ? 14 : (long)below(40));
        break;
    }
    default: /* its bytes as libFuzzer likes */
        length = (long)LLVMFuzzerMutate(body, length, sizeof body);
        put_segment(f, at, end - at, marker, body, length);
    }
}

/* Of the scan; what would be a marker by chance is made data. */
static void mutate_scan(struct file *f) {
    const long at = f->scan, length = (long)f->size - at;
    if (length < 20) return;
    const long place = at + 14 + (long)below((uint32_t)length - 14);
    switch (below(4)) {
    case 0:
        f->data[place] ^= (uint8_t)(1 << below(8));
        break;
    case 1: {
        const uint8_t marker[2] = {0xFF, (uint8_t)(below(3) ? 0xD0 + below(10) : below(256))};
        replace(f, place, 0, marker, 2);
        break;
    }
    case 2: {
        const long cut = 1 + (long)below(8);
        if (place + cut < (long)f->size) replace(f, place, cut, NULL, 0);
        break;
    }
    default: {
        uint8_t some[16];
        const long count = 1 + (long)below(8);
        for (int i = 0; i < count; i++) some[i] = (uint8_t)below(255);
        replace(f, place, 0, some, count);
    }
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned int seed) {
    struct file f = {.data = data, .size = size, .most = most};
    state = seed * 0x9E3779B97F4A7C15ULL + 1;
    if (good_count && below(2)) {
        const uint32_t at = below(good_count);
        if (good[at].size <= most) memcpy(data, good[at].data, f.size = good[at].size);
    }
    for (uint32_t turns = 1 + below(3); turns; turns--) {
        const uint32_t how = below(10);
        if (!parse(&f) || how == 0)
            f.size = LLVMFuzzerMutate(f.data, f.size, f.most);
        else if (how < 5)
            mutate_codes(&f);
        else if (how < 8)
            mutate_segment(&f);
        else
            mutate_scan(&f);
    }
    return f.size;
}
