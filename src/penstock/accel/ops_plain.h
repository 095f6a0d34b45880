/* The parts of ops.c that vectors make faster: each does as many as it can, and says how many that were. Here, for processors
 * whose vectors are not known, none. */

/* By one table; and by three, the values of which lie at every third place. */
static long look_up_some(const uint8_t *image, long count, const uint8_t *table, uint8_t *restrict out) {
    (void)image, (void)count, (void)table, (void)out;
    return 0;
}

static long look_up3_some(const uint8_t *image, long count, const uint8_t tables[3][256], uint8_t *restrict out) {
    (void)image, (void)count, (void)tables, (void)out;
    return 0;
}

/* Of a row of pixels of three channels, the greys, added. */
static int grey_sum_some(const uint8_t *from, int width, int64_t *sum) {
    (void)from, (void)width, (void)sum;
    return 0;
}

/* Of a row of pixels of three channels, each blended with its own grey. */
static int saturate_some(const uint8_t *from, int width, float share, uint8_t *out) {
    (void)from, (void)width, (void)share, (void)out;
    return 0;
}

/* Of the bytes from `x` to `end`; where it stopped. */
static int sharpen_some(const uint8_t *at, const uint16_t *column, int x, int end, int channels, float share, uint8_t *restrict to) {
    (void)at, (void)column, (void)end, (void)channels, (void)share, (void)to;
    return x;
}

/* Of pixels of three bytes at places that `dx` and `dy` lie between. */
static int gather_some(const uint8_t *begin, int stride, int xx, int yy, int dx, int dy, int count, uint8_t *out) {
    (void)begin, (void)stride, (void)xx, (void)yy, (void)dx, (void)dy, (void)count, (void)out;
    return 0;
}
