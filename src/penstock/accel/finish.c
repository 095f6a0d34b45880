/* The end of a sample whose beginning is kept, from where it lies to its place in a batch: a part of an image, resized, and normalised or not. Many in
 * one call: between the pixels of two of them the interpreter would find its own data gone from the caches. */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "accel.h"

/* What was read or written before is, before what follows: for Python, which has no such thing. */
void penstock_fence(void) { atomic_thread_fence(memory_order_seq_cst); }

/* As Python packs it (`accel.PART`). */
struct part {
    const uint8_t *image;
    long stride;
    const int64_t *mark; /* This is `marked` as long as the image is what it was; or there is none. */
    int64_t marked;
    void *out;
    const float *numbers; /* Without any, `out` gets the pixels. */
    int32_t rows, columns, height, width, cubic, down_first, mirrored, divides;
};

/* Those of which `gone` says so were not the image any more when they had been read: nothing was written for them. -1 without memory. */
int penstock_finish(const struct part *parts, int count, uint8_t *gone) {
    uint8_t *pixels = NULL;
    size_t room = 0;
    int failed = 0;
    for (int at = 0; at < count; at++) {
        const struct part *part = parts + at;
        const size_t size = (size_t)3 * part->height * part->width;
        if (size > room) {
            free(pixels);
            pixels = malloc(room = size);
        }
        const double box[4] = {0, 0, part->rows, part->columns};
        failed = !pixels || penstock_resample(part->image, part->stride, 3, part->rows, part->columns, box, pixels, part->height,
                                              part->width, part->cubic, part->down_first, part->mirrored);
        if (failed) break;
        atomic_thread_fence(memory_order_seq_cst);
        gone[at] = part->mark && *(const volatile int64_t *)part->mark != part->marked;
        if (gone[at]) continue;
        if (part->numbers)
            penstock_normal(pixels, 3l * part->width, part->height, part->width, part->out, part->numbers, part->divides);
        else
            memcpy(part->out, pixels, size);
    }
    free(pixels);
    return failed ? -1 : 0;
}
