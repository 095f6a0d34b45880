/* Of `jpeg.c`: what a file says of itself before its scans, and the bytes of a scan. */

struct part {
    int id, h, v, steps; /* h, v: blocks in an MCU */
    struct table *dct, *act;
    int rows, columns, dc;                   /* samples; the last block's level */
    uint8_t *ring;                           /* two MCU rows of the wanted columns */
    size_t stride;
};

struct file {
    const uint8_t *at, *end;
    int16_t steps[4][64]; /* row by row */
    int steps_known[4];
    uint32_t known; /* tables that this file has, a bit for each */
    struct part part[3];
    int parts, height, width, interval, jfif, adobe;
};

static int word(const uint8_t *at) { return at[0] << 8 | at[1]; }

static int read_steps(struct file *f, const uint8_t *at, const uint8_t *end) {
    for (; at < end; at += 65) {
        if (end - at < 65 || at[0] > 3) return OTHER; /* steps of 16 bits among them */
        for (int k = 0; k < 64; k++) f->steps[at[0]][PLACE[1 + k]] = at[1 + k];
        f->steps_known[at[0]] = 1;
    }
    return DONE;
}

static int read_tables(struct file *f, const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        if (end - at < 17 || (at[0] & 0xEF) > 3) return OTHER;
        int total = 0;
        for (int i = 1; i <= 16; i++) total += at[i];
        if (total > 256 || end - at < 17 + total) return OTHER;
        if (build(kept + (at[0] & 3) + (at[0] & 0x10 ? 4 : 0), at, total, !(at[0] & 0x10))) return OTHER;
        f->known |= 1U << at[0];
        at += 17 + total;
    }
    return DONE;
}

static int read_frame(struct file *f, const uint8_t *at, const uint8_t *end) {
    if (f->parts || end - at < 6 || at[0] != 8) return OTHER;
    f->height = word(at + 1), f->width = word(at + 3), f->parts = at[5];
    if (f->height < 1 || f->height > SIDE || f->width < 1 || f->width > SIDE) return OTHER;
    if ((f->parts != 1 && f->parts != 3) || end - at != 6 + 3 * f->parts) return OTHER;
    for (int i = 0; i < f->parts; i++) {
        const uint8_t *entry = at + 6 + 3 * i;
        f->part[i] = (struct part){.id = entry[0], .h = entry[1] >> 4, .v = entry[1] & 15, .steps = entry[2]};
        if (entry[2] > 3 || f->part[i].h < 1 || f->part[i].h > 4 || f->part[i].v < 1 || f->part[i].v > 4) return OTHER;
    }
    struct part *p = f->part;
    if (f->parts == 1) p->h = p->v = 1; /* alone, it comes block by block */
    const int sampling = p->h << 4 | p->v;
    if (sampling != 0x11 && sampling != 0x21 && sampling != 0x22) return OTHER;
    for (int i = 0; i < f->parts; i++) {
        if (i && (p[i].h != 1 || p[i].v != 1)) return OTHER;
        p[i].rows = i ? (f->height + p->v - 1) / p->v : f->height;
        p[i].columns = i ? (f->width + p->h - 1) / p->h : f->width;
    }
    return p[f->parts - 1].columns > 2 || p->h == 1 ? DONE : OTHER; /* libjpeg filters no narrower chroma */
}

static int read_scan(struct file *f, const uint8_t *at, const uint8_t *end) {
    if (!f->parts || end - at != 4 + 2 * f->parts || at[0] != f->parts) return OTHER;
    for (int i = 0; i < f->parts; i++) {
        struct part *p = f->part + i;
        const uint8_t *entry = at + 1 + 2 * i;
        const int dc = entry[1] >> 4, ac = entry[1] & 15;
        if (entry[0] != p->id || dc > 3 || ac > 3) return OTHER;
        const uint32_t needs = 1U << dc | 0x10000U << ac;
        if ((f->known & needs) != needs || !f->steps_known[p->steps]) return OTHER;
        p->dct = kept + dc, p->act = kept + 4 + ac;
    }
    const uint8_t *last = end - 3;
    if (last[0] != 0 || last[1] != 63 || last[2] != 0) return OTHER;
    if (f->parts == 3 && !f->jfif) { /* as libjpeg guesses the colours; others than YCbCr are its business */
        const int plain = f->part[0].id == 1 && f->part[1].id == 2 && f->part[2].id == 3;
        if (f->adobe >= 0 ? f->adobe != 1 : !plain) return OTHER;
    }
    return DONE;
}

/* Up to the first byte of the scan. */
static int read_markers(struct file *f) {
    if (f->end - f->at < 4 || f->at[0] != 0xFF || f->at[1] != 0xD8) return OTHER;
    f->at += 2;
    for (;;) {
        if (f->end - f->at < 4 || f->at[0] != 0xFF) return OTHER;
        const int marker = f->at[1], length = word(f->at + 2);
        const uint8_t *body = f->at + 4;
        if (length < 2 || length > f->end - f->at - 2) return OTHER;
        const uint8_t *end = f->at += 2 + length;
        int trouble = DONE;
        if (marker == 0xDA) return read_scan(f, body, end);
        if (marker == 0xDB) trouble = read_steps(f, body, end);
        else if (marker == 0xC4) trouble = read_tables(f, body, end);
        else if (marker == 0xC0 || marker == 0xC1) trouble = read_frame(f, body, end);
        else if (marker == 0xDD && length == 4) f->interval = word(body);
        else if (marker == 0xE0 && end - body >= 14 && !memcmp(body, "JFIF", 5)) f->jfif = 1, trouble = body[5] == 1 ? DONE : OTHER;
        else if (marker == 0xEE && end - body >= 12 && !memcmp(body, "Adobe", 5)) f->adobe = body[11];
        else if (!(marker >= 0xE0 && marker <= 0xEF) && marker != 0xFE) trouble = OTHER;
        if (trouble) return trouble;
    }
}

/* The bytes up to the next marker, without the zeros that follow each 0xFF, into `to`; how many. `marker` is 0 at the file's end. */
static long unstuff(struct file *f, uint8_t *to, int *marker) {
    uint8_t *start = to;
    for (;;) {
        const uint8_t *found = memchr(f->at, 0xFF, f->end - f->at);
        const int over = !found || f->end - found < 2;
        const size_t before = (over ? f->end : found) - f->at;
        memcpy(to, f->at, before);
        to += before;
        f->at = over ? f->end : found + 2;
        if (over || found[1]) {
            *marker = over ? 0 : found[1];
            memset(to, 0, BEHIND);
            return to - start;
        }
        *to++ = 0xFF;
    }
}
