/* What the files here have of each other. */

#include <stdint.h>

/* Vectors: none; of 32 bytes; of 64 bytes; those, with an instruction that adds products of words; and with one that takes bytes from anywhere in
 * two of them. On Arm: of 16 bytes; and with an instruction that adds products of bytes. */
enum { PLAIN, AVX2, WIDE, DOTS, PERMUTES, NEON = AVX2 };

/* Whether to use these. */
int penstock_uses(int which);

/* Loops that others here call. */
int penstock_resample(const uint8_t *image, long stride, int channels, int height, int width, const double *box, uint8_t *out,
                      int new_height, int new_width, int cubic, int down_first, int mirrored);
void penstock_normal(const uint8_t *image, long stride, int height, int width, float *out, const float *numbers, int divides);

#ifdef __x86_64__ /* of functions that use these */
#define WITH_WIDE __attribute__((target("avx2,avx512f,avx512bw,avx512vl")))
#define WITH_DOTS __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512vnni")))
#define WITH_PERMUTES __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")))
#endif

#define INLINE static inline __attribute__((always_inline))

/* Not under the thread sanitizer: gcc instruments the code that picks a clone, which runs before the sanitizer has started. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define VECTORS
#endif
