/* All compiled loops in two threads at once, from the first call on: `test_loops_in_threads.py` builds it with the thread sanitizer.
 * Arguments: a JPEG file, its height and width. Inputs are shared, outputs are not; both threads must come to the same. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "accel.h"

int penstock_jpeg(const uint8_t *, long, int, int, int, int, int, int, int, uint8_t *);
void penstock_planes(const uint8_t *, long, int, int, int, float *, const float *);
int64_t penstock_grey_sum(const uint8_t *, long, int, int);
void penstock_saturate(const uint8_t *, long, int, int, float, uint8_t *);
int penstock_sharpen(const uint8_t *, int, int, int, float, uint8_t *);
void penstock_look_up(const uint8_t *, long, const uint8_t *, int, uint8_t *);
void penstock_equalizing(const uint8_t *, long, int, int, int, uint8_t *);
void penstock_stretching(const uint8_t *, long, int, int, uint8_t *);
void penstock_affine(const uint8_t *, long, int, int, int, int, int, uint8_t *, int, int, int, int, const double *, const uint8_t *);
uint32_t penstock_crc32(const uint8_t *, long, long, uint32_t);
int penstock_crc32_is_fast(void);

#define SIDE 70
#define NEW 33
#define TURNS 20

static uint8_t file[1 << 16], image[SIDE * SIDE * 3];
static float table[3 * 256];
static long size;
static int rows, columns;
static pthread_barrier_t start;

struct results {
    uint8_t photo[1 << 16], resized[NEW * NEW * 3], full[sizeof image], sharp[sizeof image], looked_up[sizeof image], moved[sizeof image];
    uint8_t equalizing[256 * 3], stretching[256 * 3];
    float planes[sizeof image], normal[sizeof image];
    int64_t grey, failed;
    uint32_t sum;
};

static void *play(void *given) {
    struct results *r = given;
    const float numbers[7] = {1 / 255.0f, 0.5f, 0.4f, 0.3f, 0.2f, 0.3f, 0.25f};
    const double box[4] = {0, 0, SIDE, SIDE}, map[6] = {0.9, 0.2, 1, -0.2, 0.9, 3};
    const uint8_t fill[3] = {1, 2, 3};
    pthread_barrier_wait(&start);
    for (int turn = 0; turn < TURNS; turn++) {
        /* What asks for the processor's vectors comes first. */
        r->failed |= penstock_resample(image, 3 * SIDE, 3, SIDE, SIDE, box, r->resized, NEW, NEW, turn & 1, turn >> 1 & 1, 0);
        r->failed |= penstock_jpeg(file, size, rows, columns, 0, 0, rows, columns, 1, r->photo);
        r->grey = penstock_grey_sum(image, 3 * SIDE, SIDE, SIDE);
        penstock_normal(image, 3 * SIDE, SIDE, SIDE, r->normal, numbers, 0);
        penstock_planes(image, 3 * SIDE, 3, SIDE, SIDE, r->planes, table);
        penstock_saturate(image, 3 * SIDE, SIDE, SIDE, 1.5f, r->full);
        r->failed |= !penstock_sharpen(image, SIDE, 3 * SIDE, 3, 1.5f, r->sharp);
        penstock_equalizing(image, 3 * SIDE, SIDE, SIDE, 3, r->equalizing);
        penstock_stretching(image, 3 * SIDE, SIDE, SIDE, r->stretching);
        penstock_look_up(image, sizeof image, r->equalizing, 3, r->looked_up);
        penstock_affine(image, 3 * SIDE, 3, 0, 0, SIDE, SIDE, r->moved, 0, 0, SIDE, SIDE, map, fill);
        if (penstock_crc32_is_fast()) r->sum = penstock_crc32(image, 0, 4096, 0);
    }
    return NULL;
}

int main(int count, char **arguments) {
    FILE *from = count == 4 ? fopen(arguments[1], "rb") : NULL;
    if (!from) return 2;
    size = (long)fread(file, 1, sizeof file, from);
    fclose(from);
    rows = atoi(arguments[2]), columns = atoi(arguments[3]);
    if (3 * rows * columns > 1 << 16) return 2;
    for (unsigned i = 0; i < sizeof image; i++) image[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int i = 0; i < 3 * 256; i++) table[i] = (float)i;
    struct results *results = calloc(2, sizeof *results);
    pthread_t threads[2];
    pthread_barrier_init(&start, NULL, 2);
    for (int i = 0; i < 2; i++)
        if (pthread_create(threads + i, NULL, play, results + i)) return 2;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    const int same = !memcmp(results, results + 1, sizeof *results) && !results->failed;
    free(results);
    puts(same ? "same" : "different");
    return !same;
}
