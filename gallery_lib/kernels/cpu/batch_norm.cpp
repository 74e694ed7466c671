// Batch norm + ReLU in training, forward and backward, on batches in channels_last: batch_norm.cu for the CPU. Results
// are those of the plain-torch reference up to the order of sums. Sums are in fp32 over a few rows and in fp64 over these. Tensors
// that do not fit together are refused before anything is written (tensor.h).
#include <cmath>
#include <type_traits>
#include <vector>

#include "batch_norm.h"

// Mean and squared deviations of each slab, [slabs, C]. Values are taken from the mean of the first few, so that little cancels.
template <class Element>
static void moments(const Element* x, const Matrix m, int64_t threads, double* means, double* squares) {
    in_parallel(m, threads, true, [=](Part part) {
        alignas(64) float centre[TILE];
        alignas(64) double sum[TILE] = {}, square[TILE] = {};
        const int64_t first = std::min(part.end, part.row + GROUP), count = part.end - part.row;
        in_vectors(part.from, part.to, [&](int64_t c, auto all) {
            Floats s = {};
            for (int64_t row = part.row; row < first; row++) s += load(x + row * m.channels + c, all);
            store(centre + c - part.from, s / float(first - part.row));
        });
        for (int64_t row = part.row; row < part.end; row += GROUP) {
            const int64_t rows = std::min(GROUP, part.end - row);
            in_vectors(part.from, part.to, [&](int64_t c, auto all) {
                const Floats middle = load(centre + c - part.from);
                Floats s = {}, q = {};
                for (int64_t k = 0; k < rows; k++) {
                    const Floats off = load(x + (row + k) * m.channels + c, all) - middle;
                    s += off, q += off * off;
                }
                add_to(sum + c - part.from, s), add_to(square + c - part.from, q);
            });
        }
        for (int64_t c = part.from; c < part.to; c++) {
            const double s = sum[c - part.from], q = square[c - part.from] - s * s / count;
            means[part.slab * m.channels + c] = centre[c - part.from] + s / count;
            squares[part.slab * m.channels + c] = q < 0.0 ? 0.0 : q;  // NaN stays
        }
    });
}

// Mean and squared deviations of all rows, [C] each.
template <class Element>
static std::vector<double> merged(const Element* x, const Matrix m, int64_t threads) {
    std::vector<double> result(2 * m.channels), parts(2 * m.slabs * m.channels);
    double *mean = result.data(), *squared = mean + m.channels, *means = parts.data(), *squares = means + m.slabs * m.channels;
    moments(x, m, threads, means, squares);
    for (int64_t slab = 0; slab < m.slabs; slab++)
        for (int64_t c = 0; c < m.channels; c++) mean[c] += m.rows_of(slab) * means[slab * m.channels + c];
    for (int64_t c = 0; c < m.channels; c++) mean[c] /= m.rows;
    for (int64_t slab = 0; slab < m.slabs; slab++)
        for (int64_t c = 0; c < m.channels; c++) {
            const double off = means[slab * m.channels + c] - mean[c];
            squared[c] += squares[slab * m.channels + c] + m.rows_of(slab) * (off * off);
        }
    return result;
}

static int64_t statistics(const Arguments& a) {
    constexpr int64_t RUNNING = bits({FIRST_SUM, SECOND_SUM}), NEEDED = bits({X, MEAN, SECOND});
    Tensors tensors;
    if (const int64_t refused = read(a, NEEDED, NEEDED | RUNNING, NEEDED | RUNNING, tensors)) return refused;
    const Matrix m = tensors.matrix();
    if (tensors.has(FIRST_SUM) != tensors.has(SECOND_SUM)) return refusal(WRONG_ARGUMENTS);
    const bool wide = tensors.dtype == FLOAT32;
    const auto result = wide ? merged(tensors.batch<float>(X), m, a.threads) : merged(tensors.batch<BFloat16>(X), m, a.threads);
    const double *mean = result.data(), *squared = mean + m.channels, unbiased = 1.0 / std::max<int64_t>(1, m.rows - 1);
    for (int64_t c = 0; c < m.channels; c++) {
        tensors.values(MEAN)[c] = float(mean[c]);
        tensors.values(SECOND)[c] = float(1.0 / std::sqrt(squared[c] / m.rows + a.epsilon));
        if (!tensors.has(FIRST_SUM)) continue;
        float &running_mean = tensors.values(FIRST_SUM)[c], &running_variance = tensors.values(SECOND_SUM)[c];
        running_mean = float((1.0 - a.number) * running_mean + a.number * mean[c]);
        running_variance = float((1.0 - a.number) * running_variance + a.number * (squared[c] * unbiased));
    }
    return FINE;
}

template <class Element>
static void normalise(const Tensors& tensors, const Affine& affine, int64_t threads) {
    const Element* x = tensors.batch<Element>(X);
    Element* result = tensors.batch<Element>(WRITTEN);
    const float *mean = affine.mean, *scale = affine.scale, *shift = affine.shift;
    const Matrix m = tensors.matrix();
    in_parallel(m, threads, false, [=](Part part) {
        for (int64_t row = part.row; row < part.end; row++)
            in_vectors(part.from, part.to, [=](int64_t c, auto all) {
                const int64_t at = row * m.channels + c;
                const Floats value = (load(x + at, all) - load(mean + c)) * load(scale + c) + load(shift + c);
                store(result + at, relu(value), all);
            });
    });
}

static int64_t forward(const Arguments& a) {
    constexpr int64_t NEEDED = bits({X, WRITTEN, MEAN, SECOND}), OTHERS = bits({WEIGHT, BIAS});
    Tensors tensors;
    if (const int64_t refused = read(a, NEEDED, NEEDED | OTHERS, bits({WRITTEN}), tensors)) return refused;
    const Affine affine(tensors);
    (tensors.dtype == FLOAT32 ? normalise<float> : normalise<BFloat16>)(tensors, affine, a.threads);
    return FINE;
}

// Sums over each slab, [slabs, C]: of gradient · (x − mean), and of the gradient, which is that behind ReLU.
template <class Element>
static void slab_sums(const Tensors& tensors, const Affine& affine, int64_t threads, double* products, double* gradients) {
    const Element *gradient = tensors.batch<Element>(GRADIENT), *x = tensors.batch<Element>(X);
    const float *mean = affine.mean, *scale = affine.scale, *shift = affine.shift;
    const Matrix m = tensors.matrix();
    in_parallel(m, threads, true, [=](Part part) {
        alignas(64) double product[TILE] = {}, sum[TILE] = {};
        double *products_of_part = product - part.from, *sums_of_part = sum - part.from;
        const auto add_rows = [=](int64_t row, auto rows) {
            in_vectors(part.from, part.to, [=](int64_t c, auto all) {
                const Floats middle = load(mean + c), slope = load(scale + c), start = load(shift + c);
                Floats s = {}, q = {};
                for (int64_t k = 0; k < rows; k++) {
                    const int64_t at = (row + k) * m.channels + c;
                    const Floats off = load(x + at, all) - middle;
                    Floats g = load(gradient + at, all);
                    g = off * slope + start <= largest_zero(x) ? Floats{} : g;
                    s += g, q += g * off;
                }
                add_to(sums_of_part + c, s), add_to(products_of_part + c, q);
            });
        };
        int64_t row = part.row;
        for (; row + GROUP <= part.end; row += GROUP) add_rows(row, std::integral_constant<int64_t, GROUP>{});
        if (row < part.end) add_rows(row, part.end - row);
        std::copy(product, product + (part.to - part.from), products + part.slab * m.channels + part.from);
        std::copy(sum, sum + (part.to - part.from), gradients + part.slab * m.channels + part.from);
    });
}

static void sums(const Tensors& tensors, const Affine& affine, int64_t threads) {
    const Matrix m = tensors.matrix();
    std::vector<double> parts(2 * m.slabs * m.channels), totals(2 * m.channels);
    double *products = parts.data(), *gradients = products + m.slabs * m.channels;
    double *product = totals.data(), *gradient = product + m.channels;
    (tensors.dtype == FLOAT32 ? slab_sums<float> : slab_sums<BFloat16>)(tensors, affine, threads, products, gradients);
    for (int64_t slab = 0; slab < m.slabs; slab++)
        for (int64_t c = 0; c < m.channels; c++) {
            product[c] += products[slab * m.channels + c];
            gradient[c] += gradients[slab * m.channels + c];
        }
    for (int64_t c = 0; c < m.channels; c++) {
        tensors.values(FIRST_SUM)[c] = float(product[c] * tensors.values(SECOND)[c]);
        tensors.values(SECOND_SUM)[c] = float(gradient[c]);
    }
}

template <class Element>
static void of_input(const Tensors& tensors, const Affine& affine, int64_t threads) {
    const Element *x = tensors.batch<Element>(X), *gradient = tensors.batch<Element>(GRADIENT);
    Element* of_x = tensors.batch<Element>(WRITTEN);
    const float *mean = affine.mean, *scale = affine.scale, *shift = affine.shift, *average = affine.average, *slope = affine.slope;
    const Matrix m = tensors.matrix();
    in_parallel(m, threads, false, [=](Part part) {
        for (int64_t row = part.row; row < part.end; row++)
            in_vectors(part.from, part.to, [=](int64_t c, auto all) {
                const int64_t at = row * m.channels + c;
                const Floats off = load(x + at, all) - load(mean + c);
                Floats g = load(gradient + at, all);
                g = off * load(scale + c) + load(shift + c) <= largest_zero(x) ? Floats{} : g;
                store(of_x + at, load(scale + c) * (g - load(average + c) - off * load(slope + c)), all);
            });
    });
}

static int64_t gradient(const Arguments& a) {
    constexpr int64_t WRITES = bits({WRITTEN, FIRST_SUM, SECOND_SUM}), NEEDED = WRITES | bits({X, GRADIENT, MEAN, SECOND});
    Tensors tensors;
    if (const int64_t refused = read(a, NEEDED, NEEDED | bits({WEIGHT, BIAS}), WRITES, tensors)) return refused;
    Affine affine(tensors);
    sums(tensors, affine, a.threads);
    const Matrix m = tensors.matrix();
    const double rows = double(m.rows);
    for (int64_t c = 0; c < m.channels; c++) {
        affine.average[c] = float(tensors.values(SECOND_SUM)[c] / rows);
        affine.slope[c] = float(double(tensors.values(FIRST_SUM)[c]) * tensors.values(SECOND)[c] / rows);
    }
    (tensors.dtype == FLOAT32 ? of_input<float> : of_input<BFloat16>)(tensors, affine, a.threads);
    return FINE;
}

extern "C" int64_t batch_norm_statistics(const Arguments* a) { return guarded(statistics, a); }
extern "C" int64_t batch_norm_forward(const Arguments* a) { return guarded(forward, a); }
extern "C" int64_t batch_norm_gradient(const Arguments* a) { return guarded(gradient, a); }
