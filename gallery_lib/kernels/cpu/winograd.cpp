// Convolutions by 3 × 3 kernels, stride 1 and padding 1, of fp32 images in channels_last with fewer multiplications: Winograd's F(2 × 2,
// 3 × 3), in Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016. A tile of 2 × 2 results is made of 4 × 4 pixels.
// Pixels and kernels are transformed (B'dB, GgG'), so that 16 products of matrices take the place of 36, and the sums are transformed
// back (A'mA). All three transformations are of small whole numbers and halves, so that rounding is about that of the convolution.
// The gradient of the image is such a convolution by turned kernels. That of the kernels is the transpose of these steps: G'(B'dB ∘ AgA')G,
// with g the gradient of the results and sums over all tiles.
//
// A block of tiles goes through all steps while it is in the cache. Each result is a sum in an order of its own, whatever the thread, so
// results have the same bits for any number of threads. Processors differ, since multiplications and additions are fused where they can.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "tensor.h"
#include "vectors.h"

// One register of the processor each: sums of ROWS by VECTORS stay in registers, where a vector of two registers would go to memory.
#if defined(__AVX512F__)
constexpr int64_t LANES = 16, VECTORS = 4;
#else
constexpr int64_t LANES = 8, VECTORS = 2;
#endif
typedef float Lanes __attribute__((vector_size(LANES * sizeof(float))));
constexpr int64_t POINTS = 16, ROWS = 6, COLUMNS = VECTORS * LANES;
constexpr int64_t SOME = 8;             // channels whose kernels are transformed together; divides LANES
constexpr int64_t CACHE = LANES << 14;  // floats of a block, before and behind its products: the second cache, 512 KB with AVX2

static inline Lanes read_lanes(const float* from) {
    Lanes values;
    std::memcpy(&values, from, sizeof values);
    return values;
}
static inline void write_lanes(float* to, Lanes values) { std::memcpy(to, &values, sizeof values); }

struct Arguments {
    const int64_t* columns;
    int64_t length, turned, threads;
};

struct Sizes {
    int64_t images, height, width, in, out;  // channels
    int64_t down() const { return (height + 1) / 2; }
    int64_t across() const { return (width + 1) / 2; }
    int64_t tiles() const { return images * down() * across(); }
    int64_t strips() const { return (out + COLUMNS - 1) / COLUMNS; }
    int64_t padded() const { return strips() * COLUMNS; }
};

struct Free {
    void operator()(float* memory) const { std::free(memory); }
};
typedef std::unique_ptr<float, Free> Memory;
static Memory allocated(int64_t floats) {
    return Memory(static_cast<float*>(std::aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64)));
}

// Calls copy(in, out, tap, element) for some kernels, rows of memory one after the other.
template <class Copy>
static void for_kernels(const Tensor& weight, bool turned, int64_t first_in, int64_t first_out, int64_t count, Copy copy) {
    const int64_t along_out = weight.strides[turned ? 1 : 0], along_in = weight.strides[turned ? 0 : 1];
    float* from = weight.as<float>() + first_out * along_out + first_in * along_in;
    const auto one = [&](int64_t in, int64_t out) {
        for (int64_t tap = 0; tap < 9; tap++) {
            const int64_t place = turned ? 8 - tap : tap;
            copy(in, out, tap, from[in * along_in + out * along_out + place / 3 * weight.strides[2] + place % 3 * weight.strides[3]]);
        }
    };
    if (along_in < along_out)
        for (int64_t out = 0; out < count; out++)
            for (int64_t in = 0; in < SOME; in++) one(in, out);
    else
        for (int64_t in = 0; in < SOME; in++)
            for (int64_t out = 0; out < count; out++) one(in, out);
}

// Kernels of one strip of results, transformed: [POINTS][strips][in][COLUMNS].
static void transform_kernels(const Tensor& weight, bool turned, const Sizes& s, int64_t strip, float* to) {
    const int64_t first = strip * COLUMNS, count = std::min(COLUMNS, s.out - first), apart = s.strips() * s.in * COLUMNS;
    alignas(64) float g[SOME][9][COLUMNS] = {};
    for (int64_t begin = 0; begin < s.in; begin += SOME) {
        for_kernels(weight, turned, begin, first, count, [&](int64_t in, int64_t out, int64_t tap, float& element) { g[in][tap][out] = element; });
        for (int64_t in = 0; in < SOME; in++)
            for (int64_t v = 0; v < COLUMNS; v += LANES) {
                Lanes half[4][3];
                for (int x = 0; x < 3; x++) {
                    const Lanes top = read_lanes(g[in][x] + v), middle = read_lanes(g[in][3 + x] + v), bottom = read_lanes(g[in][6 + x] + v);
                    half[0][x] = top, half[3][x] = bottom;
                    half[1][x] = 0.5f * (top + middle + bottom), half[2][x] = 0.5f * (top - middle + bottom);
                }
                float* into = to + (strip * s.in + begin + in) * COLUMNS + v;
                for (int y = 0; y < 4; y++) {
                    const Lanes left = half[y][0], middle = half[y][1], right = half[y][2];
                    const Lanes all[4] = {left, 0.5f * (left + middle + right), 0.5f * (left - middle + right), right};
                    for (int x = 0; x < 4; x++) write_lanes(into + (4 * y + x) * apart, all[x]);
                }
            }
    }
}

// Pixels of one tile, transformed: [POINTS][tiles of the block][in].
static void transform_pixels(const float* image, const float* zeros, const Sizes& s, int64_t tile, float* to, int64_t apart) {
    const int64_t y = tile / s.across() % s.down() * 2 - 1, x = tile % s.across() * 2 - 1;
    const float* sample = image + tile / (s.across() * s.down()) * s.height * s.width * s.in;
    const float* pixel[4][4];
    for (int64_t i = 0; i < 4; i++)
        for (int64_t j = 0; j < 4; j++) {
            const bool inside = y + i >= 0 && y + i < s.height && x + j >= 0 && x + j < s.width;
            pixel[i][j] = inside ? sample + ((y + i) * s.width + x + j) * s.in : zeros;
        }
    for (int64_t c = 0; c < s.in; c += LANES) {
        Lanes half[4][4];
        for (int j = 0; j < 4; j++) {
            const Lanes d[4] = {read_lanes(pixel[0][j] + c), read_lanes(pixel[1][j] + c), read_lanes(pixel[2][j] + c), read_lanes(pixel[3][j] + c)};
            half[0][j] = d[0] - d[2], half[1][j] = d[1] + d[2], half[2][j] = d[2] - d[1], half[3][j] = d[1] - d[3];
        }
        for (int i = 0; i < 4; i++) {
            const Lanes* d = half[i];
            const Lanes all[4] = {d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]};
            for (int j = 0; j < 4; j++) write_lanes(to + (4 * i + j) * apart + c, all[j]);
        }
    }
}

// ROWS tiles by a strip of N vectors: sums over the channels.
template <int N>
static void multiply(const float* pixels, int64_t in, const float* strip, float* sums, int64_t row) {
    Lanes sum[ROWS][N] = {};
    for (int64_t c = 0; c < in; c++, strip += COLUMNS) {
        Lanes right[N];
#pragma GCC unroll 4
        for (int v = 0; v < N; v++) right[v] = read_lanes(strip + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            const float left = pixels[r * in + c];
#pragma GCC unroll 4
            for (int v = 0; v < N; v++) sum[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < N; v++) write_lanes(sums + r * row + v * LANES, sum[r][v]);
}

// Sums of one tile, transformed back and written. What is outside the image goes to `nowhere`.
static void write_results(const float* sums, int64_t apart, const Sizes& s, int64_t tile, float* result, float* nowhere) {
    const int64_t y = tile / s.across() % s.down() * 2, x = tile % s.across() * 2;
    float* first = result + ((tile / (s.across() * s.down()) * s.height + y) * s.width + x) * s.out;
    const bool right = x + 1 < s.width, below = y + 1 < s.height;
    float* to[2][2] = {{first, right ? first + s.out : nowhere},
                       {below ? first + s.width * s.out : nowhere, right && below ? first + (s.width + 1) * s.out : nowhere}};
    for (int64_t c = 0; c < s.out; c += LANES) {
        Lanes half[2][4];
        for (int j = 0; j < 4; j++) {
            const Lanes m[4] = {read_lanes(sums + j * apart + c), read_lanes(sums + (4 + j) * apart + c), read_lanes(sums + (8 + j) * apart + c),
                                 read_lanes(sums + (12 + j) * apart + c)};
            half[0][j] = m[0] + m[1] + m[2], half[1][j] = m[1] - m[2] - m[3];
        }
        for (int i = 0; i < 2; i++) {
            write_lanes(to[i][0] + c, half[i][0] + half[i][1] + half[i][2]);
            write_lanes(to[i][1] + c, half[i][1] - half[i][2] - half[i][3]);
        }
    }
}

static void run_block(const Sizes& s, const float* image, const float* kernels, const float* zeros, int64_t from, int64_t count,
                      float* pixels, float* sums, int64_t most, float* result, float* nowhere) {
    const int64_t row = s.padded();
    for (int64_t t = 0; t < count; t++) transform_pixels(image, zeros, s, from + t, pixels + t * s.in, most * s.in);
    for (int64_t point = 0; point < POINTS; point++)
        for (int64_t strip = 0; strip < s.strips(); strip++) {
            const float* right = kernels + (point * s.strips() + strip) * s.in * COLUMNS;
            const int64_t vectors = std::min(VECTORS, (s.out - strip * COLUMNS) / LANES);
            for (int64_t t = 0; t < count; t += ROWS) {  // beyond `count` are rows that nobody reads
                const float* left = pixels + (point * most + t) * s.in;
                float* to = sums + (point * most + t) * row + strip * COLUMNS;
                switch (vectors) {
                    case 4: multiply<4>(left, s.in, right, to, row); break;
                    case 3: multiply<3>(left, s.in, right, to, row); break;
                    case 2: multiply<2>(left, s.in, right, to, row); break;
                    default: multiply<1>(left, s.in, right, to, row);
                }
            }
        }
    for (int64_t t = 0; t < count; t++) write_results(sums + t * row, most * row, s, from + t, result, nowhere);
}

enum Column : int64_t { IMAGE, WEIGHT, RESULT, TENSORS };

static int64_t read(const Arguments& arguments, Tensor* t, Column written) {
    Reader reader{arguments.columns, arguments.length, TENSORS};
    for (int64_t i = 0; i < TENSORS; i++)
        if (!reader.next(t[i])) return refusal(WRONG_ARGUMENTS);
    if (!reader.done() || arguments.threads < 1) return refusal(WRONG_ARGUMENTS);
    for (int64_t i = 0; i < TENSORS; i++) {
        if (const Reason reason = checked(t[i], FLOAT32)) return refusal(reason, 0, i);
        if (t[i].dims != 4 || t[i].count == 0) return refusal(WRONG_SHAPE, 0, i);
        if (i != WEIGHT && !is_channels_last(t[i])) return refusal(OTHER_LAYOUT, 0, i);
    }
    const int64_t *image = t[IMAGE].sizes, *weight = t[WEIGHT].sizes, *result = t[RESULT].sizes;
    const int64_t in = weight[arguments.turned ? 0 : 1], out = weight[arguments.turned ? 1 : 0];
    if (weight[2] != 3 || weight[3] != 3 || in % WIDTH || out % WIDTH || image[1] != in) return refusal(WRONG_SHAPE, 0, WEIGHT);
    if (result[0] != image[0] || result[1] != out || result[2] != image[2] || result[3] != image[3]) return refusal(WRONG_SHAPE, 0, RESULT);
    std::vector<Span> spans;
    for (int64_t i = 0; i < TENSORS; i++) spans.push_back({t[i].data, t[i].data + t[i].count * 4, i == written, 0, i});
    return overlap(spans);
}

static Sizes sizes_of(const Tensor* t) {
    const int64_t* image = t[IMAGE].sizes;
    return {image[0], image[2], image[3], image[1], t[RESULT].sizes[1]};
}

static Memory zeros_of(int64_t count) {
    Memory zeros = allocated(count);
    if (zeros) std::fill(zeros.get(), zeros.get() + count, 0.0f);
    return zeros;
}

// Writes the result; where memory is short, some of it.
static int64_t convolve(const Arguments* arguments) {
    Tensor t[TENSORS];
    if (const int64_t refused = read(*arguments, t, RESULT)) return refused;
    const Sizes s = sizes_of(t);
    const int64_t threads = arguments->threads, fits = CACHE / (POINTS * (s.in + s.out)) / ROWS * ROWS;
    const int64_t share = ((s.tiles() + threads - 1) / threads + ROWS - 1) / ROWS * ROWS;  // of a thread
    const int64_t most = std::min(std::max(fits, 4 * ROWS), share), blocks = (s.tiles() + most - 1) / most;
    const Memory kernels = allocated(POINTS * s.strips() * s.in * COLUMNS), zeros = zeros_of(s.in);
    if (!kernels || !zeros) return refusal(OUT_OF_MEMORY);
    bool failed = false;
#pragma omp parallel num_threads(int(threads)) reduction(|| : failed) if (threads > 1)
    {
        const Memory pixels = allocated(POINTS * most * s.in), sums = allocated(POINTS * most * s.padded()), nowhere = allocated(s.out);
        failed = !pixels || !sums || !nowhere;
#pragma omp for schedule(static)
        for (int64_t strip = 0; strip < s.strips(); strip++) transform_kernels(t[WEIGHT], arguments->turned, s, strip, kernels.get());
#pragma omp for schedule(static)
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t from = block * most, count = std::min(most, s.tiles() - from);
            if (!failed)
                run_block(s, t[IMAGE].as<float>(), kernels.get(), zeros.get(), from, count, pixels.get(), sums.get(), most,
                          t[RESULT].as<float>(), nowhere.get());
        }
    }
    return failed ? refusal(OUT_OF_MEMORY) : FINE;
}

// --------------------------------------------------------------------------------------------------
// The gradient of the kernels

// Gradients of one tile's results, transformed: [POINTS][strips][tiles of the block][COLUMNS].
static void transform_gradients(const float* gradient, const float* zeros, const Sizes& s, int64_t tile, float* to, int64_t most) {
    const int64_t y = tile / s.across() % s.down() * 2, x = tile % s.across() * 2;
    const float* first = gradient + ((tile / (s.across() * s.down()) * s.height + y) * s.width + x) * s.out;
    const bool right = x + 1 < s.width, below = y + 1 < s.height;
    const float* of[2][2] = {{first, right ? first + s.out : zeros},
                             {below ? first + s.width * s.out : zeros, right && below ? first + (s.width + 1) * s.out : zeros}};
    for (int64_t c = 0; c < s.out; c += LANES) {
        Lanes half[4][2];
        for (int j = 0; j < 2; j++) {
            const Lanes top = read_lanes(of[0][j] + c), bottom = read_lanes(of[1][j] + c);
            half[0][j] = top, half[1][j] = top + bottom, half[2][j] = top - bottom, half[3][j] = -bottom;
        }
        float* into = to + c / COLUMNS * most * COLUMNS + c % COLUMNS;
        for (int i = 0; i < 4; i++) {
            const Lanes left = half[i][0], other = half[i][1], all[4] = {left, left + other, left - other, -other};
            for (int j = 0; j < 4; j++) write_lanes(into + (4 * i + j) * s.strips() * most * COLUMNS, all[j]);
        }
    }
}

// ROWS channels by a strip of N vectors: sums over tiles, added to what earlier blocks gave.
template <int N>
static void add_products(const float* pixels, int64_t along, const float* strip, int64_t tiles, float* sums, int64_t row, bool beginning) {
    Lanes sum[ROWS][N] = {};
    for (int64_t t = 0; t < tiles; t++, pixels += along, strip += COLUMNS) {
        Lanes right[N];
#pragma GCC unroll 4
        for (int v = 0; v < N; v++) right[v] = read_lanes(strip + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            const float left = pixels[r];
#pragma GCC unroll 4
            for (int v = 0; v < N; v++) sum[r][v] += left * right[v];
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < N; v++) {
            float* to = sums + r * row + v * LANES;
            write_lanes(to, beginning ? sum[r][v] : read_lanes(to) + sum[r][v]);
        }
}

// Sums of some channels and one strip, transformed back and written into the kernels' gradient.
static void write_kernels(const Tensor& weight, const Sizes& s, int64_t begin, int64_t strip, const float* sums, int64_t apart) {
    alignas(64) float g[SOME][9][COLUMNS];
    const int64_t first = strip * COLUMNS, count = std::min(COLUMNS, s.out - first);
    for (int64_t in = 0; in < SOME; in++)
        for (int64_t v = 0; v < count; v += LANES) {
            const float* from = sums + (begin + in) * s.padded() + first + v;
            Lanes half[3][4];
            for (int j = 0; j < 4; j++) {
                const Lanes u[4] = {read_lanes(from + j * apart), read_lanes(from + (4 + j) * apart), read_lanes(from + (8 + j) * apart), read_lanes(from + (12 + j) * apart)};
                half[0][j] = u[0] + 0.5f * (u[1] + u[2]), half[1][j] = 0.5f * (u[1] - u[2]), half[2][j] = 0.5f * (u[1] + u[2]) + u[3];
            }
            for (int i = 0; i < 3; i++) {
                const Lanes* u = half[i];
                write_lanes(g[in][3 * i] + v, u[0] + 0.5f * (u[1] + u[2]));
                write_lanes(g[in][3 * i + 1] + v, 0.5f * (u[1] - u[2]));
                write_lanes(g[in][3 * i + 2] + v, 0.5f * (u[1] + u[2]) + u[3]);
            }
        }
    for_kernels(weight, false, begin, first, count, [&](int64_t in, int64_t out, int64_t tap, float& element) { element = g[in][tap][out]; });
}

// Writes the gradient of the kernels into `weight`; `result` holds the gradients of the results.
static int64_t differentiate(const Arguments* arguments) {
    Tensor t[TENSORS];
    if (arguments->turned) return refusal(WRONG_ARGUMENTS);
    if (const int64_t refused = read(*arguments, t, WEIGHT)) return refused;
    const Sizes s = sizes_of(t);
    const int64_t tiles = s.tiles(), most = std::min(std::max<int64_t>(CACHE / (POINTS * (s.in + s.out)), 48), tiles);
    const int64_t rows = (s.in + ROWS - 1) / ROWS * ROWS, apart = rows * s.padded();  // sums of one point
    const int64_t along = s.in + LANES;  // of a tile: rows that are apart by a power of two would share places in the cache
    const Memory pixels = allocated(POINTS * most * along), gradients = allocated(POINTS * s.strips() * most * COLUMNS);
    const Memory sums = allocated(POINTS * apart), zeros = zeros_of(std::max(s.in, s.out));
    if (!pixels || !gradients || !sums || !zeros) return refusal(OUT_OF_MEMORY);
#pragma omp parallel num_threads(int(arguments->threads)) if (arguments->threads > 1)
    {
        for (int64_t from = 0; from < tiles; from += most) {
            const int64_t count = std::min(most, tiles - from);
#pragma omp for schedule(static)
            for (int64_t tile = 0; tile < count; tile++) {
                transform_pixels(t[IMAGE].as<float>(), zeros.get(), s, from + tile, pixels.get() + tile * along, most * along);
                transform_gradients(t[RESULT].as<float>(), zeros.get(), s, from + tile, gradients.get() + tile * COLUMNS, most);
            }
#pragma omp for schedule(static)
            for (int64_t part = 0; part < POINTS * s.strips(); part++) {
                const int64_t point = part / s.strips(), strip = part % s.strips();
                const int64_t vectors = std::min(VECTORS, (s.out - strip * COLUMNS) / LANES);
                const float* right = gradients.get() + part * most * COLUMNS;
                for (int64_t row = 0; row < rows; row += ROWS) {
                    const float* left = pixels.get() + point * most * along + row;
                    float* to = sums.get() + point * apart + row * s.padded() + strip * COLUMNS;
                    switch (vectors) {
                        case 4: add_products<4>(left, along, right, count, to, s.padded(), from == 0); break;
                        case 3: add_products<3>(left, along, right, count, to, s.padded(), from == 0); break;
                        case 2: add_products<2>(left, along, right, count, to, s.padded(), from == 0); break;
                        default: add_products<1>(left, along, right, count, to, s.padded(), from == 0);
                    }
                }
            }
        }
#pragma omp for schedule(static)
        for (int64_t part = 0; part < s.strips() * (s.in / SOME); part++)
            write_kernels(t[WEIGHT], s, part / s.strips() * SOME, part % s.strips(), sums.get(), apart);
    }
    return FINE;
}

static int64_t call(const Arguments* arguments, int64_t (*function)(const Arguments*)) {
    try {
        return function(arguments);
    } catch (const std::bad_alloc&) {
        return refusal(OUT_OF_MEMORY);
    }
}

extern "C" int64_t winograd(const Arguments* arguments) { return call(arguments, convolve); }

extern "C" int64_t winograd_gradient(const Arguments* arguments) { return call(arguments, differentiate); }
