/* The parts of resize.c that vectors make faster; here, for processors whose vectors are not known, none of them is called. */

/* The weights as vectors want them, for `out` positions; NULL where there are none, or no memory. */
static struct arranged *arranged(const struct weights *w, int out, int across) {
    (void)w, (void)out, (void)across;
    return NULL;
}

static void forget(struct arranged *v) { (void)v; }

/* Rows made wider. `next`: where the rows lie that come next, from these. */
static void across3_some(const uint8_t *const row[ROWS], uint8_t *const out[ROWS], int width, const struct weights *w, size_t next) {
    (void)row, (void)out, (void)width, (void)w, (void)next;
}

/* One row of the result from the rows above each other, as many of its bytes as come in whole vectors; how many that were. */
static int down_some(const uint8_t *rows, size_t stride, uint8_t *out, int length, const struct weights *w, int at) {
    (void)rows, (void)stride, (void)out, (void)length, (void)w, (void)at;
    return 0;
}
