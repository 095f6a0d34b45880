/* zlib's CRC-32, by the processor's own instructions: carry-less products on x86-64 (Gopal et al., "Fast CRC computation for generic
 * polynomials using PCLMULQDQ", Intel, 2009), CRC instructions on aarch64. Same numbers as zlib, several times as fast.
 * Only whole pieces of 16 bytes, at least 64: the caller does the rest. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define PRODUCTS __attribute__((target("pclmul,sse4.1")))

int penstock_crc32_is_fast(void) {
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

PRODUCTS static inline __m128i loaded(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)at);
}

/* What 128 bits become when they are moved on by as many bits as the two constants stand for. */
PRODUCTS static inline __m128i moved(__m128i bits, __m128i by) {
    return _mm_xor_si128(_mm_clmulepi64_si128(bits, by, 0x00), _mm_clmulepi64_si128(bits, by, 0x11));
}

PRODUCTS uint32_t penstock_crc32(const uint8_t *data, long start, long end, uint32_t before) {
    /* Powers of x modulo the polynomial 0x04C11DB7, bits reversed: over 512 and 448 bits, 128 and 64 bits, and 64 bits. */
    const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124);
    /* The inverse of the polynomial, and the polynomial, for Barrett's reduction. */
    const __m128i reduction = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i words = _mm_setr_epi32(~0, 0, ~0, 0);

    const uint8_t *at = data + start;
    long left = end - start;
    __m128i lanes[4];
    for (int i = 0; i < 4; i++) lanes[i] = loaded(at + 16 * i);
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)~before));
    for (at += 64, left -= 64; left >= 64; at += 64, left -= 64)
        for (int i = 0; i < 4; i++) lanes[i] = _mm_xor_si128(moved(lanes[i], by_512), loaded(at + 16 * i));

    __m128i all = lanes[0];
    for (int i = 1; i < 4; i++) all = _mm_xor_si128(moved(all, by_128), lanes[i]);
    for (; left >= 16; at += 16, left -= 16) all = _mm_xor_si128(moved(all, by_128), loaded(at));

    /* 128 bits to 64, and these to 32. */
    all = _mm_xor_si128(_mm_srli_si128(all, 8), _mm_clmulepi64_si128(all, by_128, 0x10));
    all = _mm_xor_si128(_mm_srli_si128(all, 4), _mm_clmulepi64_si128(_mm_and_si128(all, words), by_64, 0x00));
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(all, words), reduction, 0x10);
    all = _mm_xor_si128(all, _mm_clmulepi64_si128(_mm_and_si128(quotient, words), reduction, 0x00));
    return ~(uint32_t)_mm_extract_epi32(all, 1);
}

#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__)
#include <sys/auxv.h>

#define HAS_CRC32 (1 << 7) /* HWCAP_CRC32 */

int penstock_crc32_is_fast(void) { return (getauxval(AT_HWCAP) & HAS_CRC32) != 0; }

uint32_t penstock_crc32(const uint8_t *data, long start, long end, uint32_t before) {
    uint32_t found = ~before;
    for (long at = start; at + 8 <= end; at += 8) {
        uint64_t word;
        memcpy(&word, data + at, 8);
        /* As text for the assembler: compilers differ in how they are asked for it. */
        __asm__(".arch_extension crc\n\tcrc32x %w0, %w0, %x1" : "+r"(found) : "r"(word));
    }
    return ~found;
}

#else
int penstock_crc32_is_fast(void) { return 0; }

uint32_t penstock_crc32(const uint8_t *data, long start, long end, uint32_t before) {
    (void)data, (void)start, (void)end;
    return before;
}
#endif
