/* What the processor has; and uint8 HWC to float CHW in one pass, by a table or by arithmetic. Plain C without Python's API, as all files
 * here: loaded by ctypes, optional, see accel/__init__.py. */

#include "accel.h"

#include <stdatomic.h>
#include <stddef.h>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

/* What the processor has. */
static int processors_vectors(void) {
#ifdef __x86_64__
    if (!__builtin_cpu_supports("avx2")) return PLAIN;
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl")) return AVX2;
    if (!__builtin_cpu_supports("avx512vnni")) return WIDE;
    return __builtin_cpu_supports("avx512vbmi") ? PERMUTES : DOTS;
#elif defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? DOTS : NEON;
#elif defined(__aarch64__)
    return NEON;
#else
    return PLAIN;
#endif
}

/* Chosen when the library is loaded, before any thread can call it. Atomic all the same, since tests choose again while others read. */
static _Atomic int vectors = PLAIN;

/* Use no more than these; what will be used. For tests: each processor has its own way, and all must come to the same. */
int penstock_vectors(int most) {
    const int all = processors_vectors(), chosen = most < all ? most : all;
    atomic_store_explicit(&vectors, chosen, memory_order_relaxed);
    return chosen;
}

__attribute__((constructor)) static void choose(void) {
#ifdef __x86_64__
    __builtin_cpu_init(); /* constructors run in no order that could be relied on */
#endif
    penstock_vectors(PERMUTES);
}

/* Whether to use these. */
int penstock_uses(int which) { return atomic_load_explicit(&vectors, memory_order_relaxed) >= which; }

/* uint8, interleaved, to floats in planes, by a table of 256 values for each channel. */
void penstock_planes(const uint8_t *image, long stride, int channels, int height, int width, float *out, const float *table) {
    const size_t plane = (size_t)height * width;
    for (int row = 0; row < height; row++) {
        const uint8_t *from = image + (size_t)stride * row;
        float *to = out + (size_t)row * width;
        for (int x = 0; x < width; x++)
            for (int c = 0; c < channels; c++) to[x + c * plane] = table[256 * c + *from++];
    }
}

INLINE float normal(uint8_t value, float scale, int divides, float mean, float std) {
    return ((divides ? (float)value / scale : (float)value * scale) - mean) / std;
}

#ifdef __aarch64__
#include "accel_arm.h"
#else
INLINE int divides_rightly(const float *numbers, int divides) { return (void)numbers, (void)divides, 0; }
INLINE int normal_some(const uint8_t *from, int width, float *const to[3], const float *numbers, int divides) {
    return (void)from, (void)width, (void)to, (void)numbers, (void)divides, 0;
}
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#include "accel_x86.h"
#else
INLINE int normal_streamed(const uint8_t *image, long stride, int height, int width, float *out, const float *n, int divides) {
    return (void)image, (void)stride, (void)height, (void)width, (void)out, (void)n, (void)divides, 0;
}
#endif

INLINE void normal_row(const uint8_t *from, int width, float *const to[3], const float *n, int quick, int divides) {
    float *restrict r = to[0], *restrict g = to[1], *restrict b = to[2];
    for (int x = quick ? normal_some(from, width, to, n, divides) : 0; x < width; x++) {
        r[x] = normal(from[3 * x], n[0], divides, n[1], n[4]);
        g[x] = normal(from[3 * x + 1], n[0], divides, n[2], n[5]);
        b[x] = normal(from[3 * x + 2], n[0], divides, n[3], n[6]);
    }
}

/* The same for three channels, by arithmetic in the place of a table: times (or divided by) a scale, minus mean, divided by std;
 * `numbers` are the scale, three means, three stds. Each step is rounded, as where arrays are changed step by step. */
VECTORS void penstock_normal(const uint8_t *image, long stride, int height, int width, float *restrict out, const float *numbers,
                             int divides) {
    const size_t plane = (size_t)height * width;
    if (normal_streamed(image, stride, height, width, out, numbers, divides)) return;
    const int quick = penstock_uses(NEON) && divides_rightly(numbers, divides);
    for (int row = 0; row < height; row++) {
        const uint8_t *from = image + (size_t)stride * row;
        float *r = out + (size_t)row * width, *const to[3] = {r, r + plane, r + 2 * plane};
        if (divides)
            normal_row(from, width, to, numbers, quick, 1);
        else
            normal_row(from, width, to, numbers, quick, 0);
    }
}
