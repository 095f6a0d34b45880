/* Of `jpeg.c`: from bits to the coefficients of a block, where about half of the time for a whole photo goes. */

#define LOOK 10                /* bits that a table is asked with: more would take longer to fill, and displace others from the cache */
#define BEYOND 4               /* bits of a value that may follow them */
#define TURNS 4                /* look-ups between two refills, each of which makes sure of 56 bits */
#define BEHIND 2048            /* zeros behind a segment: more than one MCU can take (6 blocks of 64 times 27 bits) and a load */
#define LIKELY(x) __builtin_expect(!!(x), 1)
/* A table's address, by itself: on Arm a load that must add both an offset and an index takes longer, and the next code waits for it. */
#define IN_REGISTER(x) __asm__("" : "+r"(x))

_Static_assert(TURNS * (LOOK + BEYOND) <= 56, "a look-up would have bits that are not there yet");

/* Where, row by row, the coefficient lies that comes as the first, second, ... in a file. */
static const uint8_t PLACE[1 + 64 + 16] = {
    0, 0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63}; /* a run may lead up to 15 past the end */

/* ---- Huffman tables */

struct table {
    uint8_t said[17 + 256];    /* what it was built of, as a file has it: how many codes of each length, and their symbols */
    int length;                /* of that; 0: it was not built */
    uint32_t quick[1 << LOOK]; /* by the next bits: value << 16 | (run + 1) << 8 | length of code and value; value 0: symbol << 8
                                  | length of the code alone; 0: the code is longer */
    uint64_t pair[1 << LOOK];  /* by the next bits, of one or two codes in them, with their values: second value << 48 | first value << 32
                                  | LAST | 63 - bits of the second value that are beyond these << 24 | first run + 1 << 16 | coefficients << 8
                                  | length of all. Of levels one, as the second value */
    uint16_t past[1 << LOOK];  /* by the next bits, over all codes in them that are whole: END | coefficients << 8 | their length */
    int32_t limit[18];         /* the first 16 bits of codes up to this length are below this */
    int32_t base[17];          /* symbol of a code: base + code */
    uint8_t symbol[256];
    int passable;
};

/* Most files have the same tables as the one before: each thread keeps those that it built last, four for levels and four for the rest. */
static __thread struct table kept[8];

#define END 0x8000        /* the last code was that of a block's end */
#define NONE 0x7F00       /* no code is whole in these bits */
#define LAST (1ULL << 31) /* as END, of a pair: without a second value, and alone without any */

/* The value of so many bits, below half of which it is negative: without a branch, which nobody could foresee. */
static inline int extended(int bits, int size) { return bits + (((bits - (1 << (size - 1))) >> 31) & (1 - (1 << size))); }

/* All bits that begin with this code. Its values, where they fit, follow each other, each as often as bits behind it differ. */
static void fill(struct table *t, uint16_t *codes, int code, int length, int symbol, int is_dc) {
    const int rest = LOOK - length, run = symbol >> 4, size = symbol & 15, has_value = !is_dc && size && size <= rest;
    const int alike = 1 << (has_value ? rest - size : rest);
    uint32_t *entry = t->quick + (code << rest);
    for (int i = 0; i < 1 << rest; i++) codes[(code << rest) + i] = (uint16_t)(symbol << 8 | length);
    for (int value = 0; value < (has_value ? 1 << size : 1); value++) {
        const int32_t found = has_value ? (int32_t)((uint32_t)extended(value, size) << 16) | (run + 1) << 8 | (length + size)
                                        : symbol << 8 | length;
        for (int i = 0; i < alike; i++) *entry++ = (uint32_t)found;
    }
}

/* A code, and its value as if all bits were zero that are beyond those at hand. */
struct coefficient {
    int ends, places, length, beyond;
    uint64_t value;
};

/* Of LOOK bits, what stands behind those that are `used`. Whether its sign is known, and no more than `most` of its bits are beyond. */
static int read_one(const uint16_t *codes, int bits, int used, int most, struct coefficient *c) {
    const int code = codes[bits << used & ((1 << LOOK) - 1)], symbol = code >> 8, size = symbol & 15;
    const int left = LOOK - used - (code & 255), beyond = size > left ? size - left : 0, known = size - beyond;
    if (!code || left < 0 || (symbol && !known) || beyond > most) return 0;
    const int value = size ? extended((bits >> (left - known) & ((1 << known) - 1)) << beyond, size) : 0;
    *c = (struct coefficient){!symbol, (symbol >> 4) + 1, (code & 255) + size, beyond, (uint16_t)value};
    return 1;
}

/* What `block` looks up. One coefficient alone is there twice, at the same place. */
static void build_pairs(struct table *t, const uint16_t *codes) {
    for (int bits = 0; bits < 1 << LOOK; bits++) {
        struct coefficient one, two;
        uint64_t entry = NONE;
        if (read_one(codes, bits, 0, BEYOND, &one)) {
            entry = one.ends ? LAST : one.value << 48 | one.value << 32 | one.places << 16 | one.places << 8;
            entry |= (uint64_t)(63 - one.beyond) << 24 | one.length;
            if (!one.ends && read_one(codes, bits, one.length, BEYOND, &two)) {
                entry = one.value << 32 | one.places << 16 | (one.length + two.length) | (uint64_t)(63 - two.beyond) << 24;
                entry |= two.ends ? LAST | one.places << 8 : two.value << 48 | (one.places + two.places) << 8;
            }
        }
        t->pair[bits] = entry;
    }
}

/* What `dc_of` looks up, in the form of a pair's second value; 0: there is none. */
static void build_levels(struct table *t, const uint16_t *codes) {
    for (int bits = 0; bits < 1 << LOOK; bits++) {
        struct coefficient one;
        t->pair[bits] = read_one(codes, bits, 0, 16, &one) ? one.value << 48 | (uint64_t)(63 - one.beyond) << 24 | one.length : 0;
    }
}

/* Of `said`, 17 + `total` bytes. Refuses what libjpeg refuses: more codes of a length than there can be, or one that is all ones, which
 * the format reserves. */
static int build(struct table *t, const uint8_t *said, int total, int is_dc) {
    const uint8_t *counts = said + 1, *symbols = said + 17;
    int32_t code = 0, at = 0;
    if (t->length == 17 + total && !memcmp(t->said, said, t->length)) return DONE;
    uint16_t codes[1 << LOOK] = {0}; /* by bits: symbol << 8 | length of the code that they begin with */
    memset(t, 0, sizeof *t);
    memcpy(t->symbol, symbols, total);
    for (int length = 1; length <= 16; length++) {
        t->base[length] = at - code;
        for (int i = 0; i < counts[length - 1]; i++, at++, code++) {
            if (code >= (1 << length) - 1 || (is_dc ? symbols[at] > 11 : (symbols[at] & 15) > 10)) return OTHER;
            if (length <= LOOK) fill(t, codes, code, length, symbols[at], is_dc);
        }
        t->limit[length] = code << (16 - length);
        code <<= 1;
    }
    t->limit[17] = INT32_MAX;
    if (is_dc)
        build_levels(t, codes);
    else
        build_pairs(t, codes);
    t->length = 17 + total;
    memcpy(t->said, said, t->length);
    return DONE;
}

/* What `pass_block` needs; not every image has blocks that nobody wants. */
static void build_past(struct table *t) {
    for (int bits = 0; !t->passable && bits < 1 << LOOK; bits++) {
        int length = 0, count = 0, end = 0;
        while (!end) {
            const int32_t entry = (int32_t)t->quick[bits << length & ((1 << LOOK) - 1)];
            const int symbol = entry >> 8 & 255, more = entry >> 16 ? symbol : symbol == 0xF0 ? 16 : 0;
            if (!entry || length + (entry & 31) > LOOK || count + more > 63) break;
            if (!more && symbol & 15) break; /* its value is not all in these bits */
            end = !more;
            length += entry & 31;
            count += more;
        }
        t->past[bits] = (uint16_t)(length ? (end ? END : 0) | count << 8 | length : NONE);
    }
    t->passable = 1;
}

/* ---- bits */

struct bits {
    uint64_t hold; /* the next ones, from the top */
    int count;
    const uint8_t *at;
};

INLINE void refill(struct bits *b) {
    uint64_t word;
    memcpy(&word, b->at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    b->hold |= word >> b->count;
    b->at += (63 - (unsigned)b->count) >> 3;
    b->count |= 56;
}

/* Lengths are below 32, but what is cut out of an entry is cut out with 63: that is what a shift does by itself. */
INLINE void drop(struct bits *b, int count) {
    b->hold <<= count;
    b->count -= count;
}

INLINE int take(struct bits *b, int size) {
    const int bits = (int)(b->hold >> (64 - size));
    drop(b, size);
    return extended(bits, size);
}

/* symbol << 8 | length of a code that is longer than LOOK bits, or -1. By value, so that a reader's bits stay in registers. */
static __attribute__((noinline)) int long_code(uint64_t hold, const struct table *t) {
    const int32_t bits = (int32_t)(hold >> 48);
    int length = LOOK + 1;
    while (bits >= t->limit[length]) length++;
    if (length > 16) return -1;
    const int at = t->base[length] + (bits >> (16 - length));
    return at >= 0 && at < 256 ? t->symbol[at] << 8 | length : -1;
}

INLINE int symbol_of(struct bits *b, const struct table *t, int32_t entry) {
    if (!LIKELY(entry)) entry = long_code(b->hold, t);
    if (entry < 0) return -1;
    drop(b, entry & 63);
    return entry >> 8;
}

/* The bits of a value that are beyond those that its table was asked with. */
INLINE uint64_t beyond(uint64_t hold, uint64_t entry) { return hold << LOOK >> 1 >> (entry >> 24 & 63); }

INLINE int dc_of(struct bits *b, const struct table *t, int *dc) {
    const uint64_t *levels = t->pair;
    IN_REGISTER(levels);
    refill(b);
    const uint64_t entry = levels[b->hold >> (64 - LOOK)];
    if (LIKELY(entry)) {
        *dc += (int)((int64_t)entry >> 48) + (int)beyond(b->hold, entry);
        drop(b, entry & 63);
    } else {
        const int size = symbol_of(b, t, (int32_t)t->quick[b->hold >> (64 - LOOK)]);
        if (size < 0) return OTHER;
        if (size) *dc += take(b, size);
    }
    return *dc < -(1 << 15) || *dc >= 1 << 15 ? OTHER : DONE;
}

/* A code that the table does not have with its value: the coefficient's place is added to `k`, its value returned. At a block's
 * end `k` becomes 0, where something is wrong -1. */
INLINE int rare(struct bits *b, const struct table *t, int32_t entry, int *k) {
    refill(b);
    const int symbol = symbol_of(b, t, entry), size = symbol & 15;
    *k = symbol < 0 ? -1 : !size && symbol != 0xF0 ? 0 : *k + (symbol >> 4) + 1;
    return symbol > 0 && size ? take(b, size) : 0;
}

/* How far a reader is in a block: coefficients << 8 | bits since the last refill. Entries of tables have both at the same places, so that one
 * addition does for both: of all that is done here, these few instructions for each code are done most. */
#define TAKEN 255
#define FULL (64 << 8)

/* The coefficients; bits are the reader's to count again. */
INLINE int settled(struct bits *b, uint64_t state) {
    b->count -= (int)(state & TAKEN);
    return (int)(state >> 8);
}

/* One block's coefficients, not yet times their steps, into `to`, which is zero. `last` is the place of the last one in zigzag
 * order, or 0. */
INLINE int block(struct bits *b, const struct table *dct, const struct table *act, int *dc, int16_t *to, int *last) {
    if (dc_of(b, dct, dc)) return OTHER;
    int k = 1;
    const uint64_t *pairs = act->pair;
    IN_REGISTER(pairs);
    to[0] = (int16_t)*dc;
    for (;;) {
        uint64_t state = (uint64_t)k << 8;
        int i = 0;
        refill(b);
#pragma GCC unroll 4
        for (; i < TURNS; i++) {
            const uint64_t entry = pairs[b->hold >> (64 - LOOK)], rest = beyond(b->hold, entry);
            const uint64_t next = state + (uint16_t)entry;
            if (!LIKELY(next < FULL)) break; /* near the end, the second code may be that of the next block */
            b->hold <<= entry & 63;
            if (!LIKELY(!(entry & LAST))) {
                if (next >= state + (1 << 8)) to[PLACE[next >> 8]] = (int16_t)(entry >> 32);
                *last = settled(b, next) - 1;
                return DONE;
            }
            to[PLACE[(state >> 8) + (entry >> 16 & 255)]] = (int16_t)(entry >> 32);
            to[PLACE[next >> 8]] = (int16_t)((entry >> 48) + rest);
            state = next;
        }
        k = settled(b, state);
        if (i == TURNS) continue;
        const uint32_t entry = act->quick[b->hold >> (64 - LOOK)];
        if (entry > 0xFFFF) {
            drop(b, entry & 63);
            k += entry >> 8 & 31;
            to[PLACE[k]] = (int16_t)(entry >> 16);
        } else {
            const int before = k, value = rare(b, act, (int32_t)entry, &k);
            if (k <= 0) {
                if (k < 0) return OTHER;
                k = before;
                break;
            }
            if (value) to[PLACE[k]] = (int16_t)value;
        }
        if (k > 63) break;
    }
    *last = k - 1;
    return k > 64 ? OTHER : DONE;
}

/* The same, if nobody wants to know. */
INLINE int pass_block(struct bits *b, const struct table *dct, const struct table *act, int *dc) {
    if (dc_of(b, dct, dc)) return OTHER;
    int k = 1;
    const uint16_t *past = act->past;
    IN_REGISTER(past);
    for (;;) {
        uint64_t state = (uint64_t)k << 8;
        refill(b);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const uint32_t entry = past[b->hold >> (64 - LOOK)];
            const uint64_t next = state + (entry & ~END);
            if (!LIKELY(next < FULL)) break; /* near the end, codes may be those of the next block */
            state = next;
            b->hold <<= entry & 63;
            if (entry & END) {
                settled(b, state);
                return DONE;
            }
        }
        k = settled(b, state);
        const uint32_t entry = act->quick[b->hold >> (64 - LOOK)];
        if (entry > 0xFFFF) {
            k += entry >> 8 & 31;
            drop(b, entry & 63);
        } else {
            rare(b, act, (int32_t)entry, &k);
            if (k <= 0) return k < 0 ? OTHER : DONE;
        }
        if (k > 63) return k > 64 ? OTHER : DONE;
    }
}
