// Softmax cross-entropy over the rows of a matrix of logits, as in cuda/cross_entropy.cu: with label smoothing and ignored labels. Memory
// is read once forward and once backward. Forward goes over a row in pieces that the first cache holds, twice each: for the maximum and
// the sum of logits; then for the sum of exponentials. Sums of pieces are added up in fp64. No bit depends on
// the number of threads. Tensors that do not fit together are refused (tensor.h).
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "tensor.h"
#include "vectors.h"

struct Arguments {               // as in cross_entropy.py
    const int64_t* descriptors;  // of logits [N, C], labels [N]; forward loss, log_sum [N]; backward log_sum, of_loss [N], gradient
    int64_t length;              // of `descriptors`, in numbers
    int64_t ignored_label;
    double smoothing;
    int64_t threads;
};

constexpr int64_t PIECE = 1024;
constexpr float INFINITE = std::numeric_limits<float>::infinity(), NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();

// e^x to within two units in the last place, by a polynomial after x = n ln 2 + r (Cephes' expf); 0 where it is below 2^-125, NaN of NaN.
static inline Floats exponential(Floats x) {
    constexpr float LOWEST = -86.6f, HIGHEST = 89.0f, ROUNDING = 12582912.0f;  // 1.5 * 2^23, which leaves n in the lowest bits
    Floats inside = x < LOWEST ? Floats{} + LOWEST : x;
    inside = inside > HIGHEST ? Floats{} + HIGHEST : inside;
    const Floats shifted = inside * 1.44269504f + ROUNDING, n = shifted - ROUNDING;
    const Floats r = inside - n * 0.693359375f - n * -2.12194440e-4f;  // the first product is exact
    Floats y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    const Floats half = (Floats)(((Words)shifted << 23) + (126u << 23));  // 2^(n - 1), which is finite for n = 128 too
    return x < LOWEST ? Floats{} : y * half * 2.0f;
}

// Values that are not there, beyond the first ones, are replaced.
static inline Floats with_rest(Floats values, All, float) { return values; }
static inline Floats with_rest(Floats values, First part, float rest) {
    for (int64_t lane = part.count; lane < WIDTH; lane++) values[lane] = rest;
    return values;
}

struct Call {
    Tensor tensors[5];
    int64_t rows, classes, ignored_label, threads;
    double smoothing;

    template <class Element>
    Element* as(int64_t column) const {
        return tensors[column].as<Element>();
    }
    bool known(int64_t label) const { return label >= 0 && label < classes; }
};

struct Row {
    double logits = 0, exponentials = 0;  // sums; of e^(x - largest)
    float largest = -INFINITE;
};

template <class Element>
static Row read_row(const Element* row, int64_t classes) {
    Row result;
    for (int64_t begin = 0; begin < classes; begin += PIECE) {
        const int64_t end = std::min(begin + PIECE, classes);
        Floats largest = Floats{} + result.largest, logits = {}, exponentials = {};
        in_vectors(begin, end, [&](int64_t at, auto part) {
            const Floats values = load(row + at, part), compared = with_rest(values, part, -INFINITE);
            largest = compared > largest ? compared : largest;
            logits += values;
        });
        float most = largest[0];
        for (int64_t lane = 1; lane < WIDTH; lane++) most = std::max(most, largest[lane]);
        const float shift = most == -INFINITE ? 0.0f : most;  // so that the exponential of -inf is 0, and that of NaN NaN
        in_vectors(begin, end, [&](int64_t at, auto part) {
            exponentials += exponential(with_rest(load(row + at, part), part, -INFINITE) - shift);
        });
        if (most > result.largest) result.exponentials *= std::exp(double(result.largest) - double(most));
        double sum = 0, sum_of_logits = 0;
        for (int64_t lane = 0; lane < WIDTH; lane++) sum += exponentials[lane], sum_of_logits += logits[lane];
        result.largest = most, result.exponentials += sum, result.logits += sum_of_logits;
    }
    return result;
}

template <class Element>
static void forward(const Call& c) {
    const int64_t* labels = c.as<int64_t>(1);
    float *losses = c.as<float>(2), *log_sums = c.as<float>(3);
#pragma omp parallel for num_threads(int(c.threads)) schedule(static)
    for (int64_t row = 0; row < c.rows; row++) {
        const int64_t label = labels[row];
        if (label == c.ignored_label) {
            losses[row] = log_sums[row] = 0;
            continue;
        }
        const Element* logits = c.as<Element>(0) + row * c.classes;
        const float own = c.known(label) ? load(logits + label, First{1})[0] : NOT_A_NUMBER;
        const Row r = read_row(logits, c.classes);
        const double shift = r.largest == -INFINITE ? 0.0 : r.largest;
        const double log_sum = r.largest == INFINITE ? NOT_A_NUMBER : shift + std::log(r.exponentials);
        double loss = log_sum - own;
        if (c.smoothing != 0) loss = (1 - c.smoothing) * loss + c.smoothing * (log_sum - r.logits / double(c.classes));
        losses[row] = float(loss), log_sums[row] = float(log_sum);
    }
}

template <class Element>
static void backward(const Call& c) {
    const int64_t* labels = c.as<int64_t>(1);
    const float *log_sums = c.as<float>(2), *of_losses = c.as<float>(3), each = float(c.smoothing / double(c.classes));
#pragma omp parallel for num_threads(int(c.threads)) schedule(static)
    for (int64_t row = 0; row < c.rows; row++) {
        const int64_t label = labels[row];
        const Element* logits = c.as<Element>(0) + row * c.classes;
        Element* gradient = c.as<Element>(4) + row * c.classes;
        if (label == c.ignored_label) {
            std::fill_n(gradient, c.classes, Element{});
            continue;
        }
        const float log_sum = log_sums[row], of_loss = c.known(label) ? of_losses[row] : NOT_A_NUMBER;
        in_vectors(0, c.classes, [=](int64_t at, auto part) {
            store(gradient + at, of_loss * (exponential(load(logits + at, part) - log_sum) - each), part);
        });
        if (!c.known(label)) continue;
        const Floats own = exponential(load(logits + label, First{1}) - log_sum) - each - float(1 - c.smoothing);
        store(gradient + label, of_loss * own, First{1});
    }
}

// Reads the tensors into the call. Only the logits and their gradient have columns; the first `only_read` tensors are not written.
static int64_t read(const Arguments& a, const std::vector<Dtype>& dtypes, int64_t only_read, Call& c) {
    const int64_t columns = dtypes.size();
    Reader reader{a.descriptors, a.length, columns};
    std::vector<Span> spans;
    Dtype of_logits = OTHER;
    for (int64_t column = 0; column < columns; column++) {
        Tensor& tensor = c.tensors[column];
        if (!reader.next(tensor)) return refusal(WRONG_ARGUMENTS, 0, column);
        if (!column) {
            if (tensor.dtype != FLOAT32 && tensor.dtype != BFLOAT16) return refusal(WRONG_DTYPE, 0, column);
            of_logits = Dtype(tensor.dtype);
        }
        const bool matrix = dtypes[column] == OTHER;  // of the logits' dtype
        const Dtype dtype = matrix ? of_logits : dtypes[column];
        if (const Reason reason = checked(tensor, dtype)) return refusal(reason, 0, column);
        if (tensor.dims != (matrix ? 2 : 1) || !tensor.count) return refusal(WRONG_SHAPE, 0, column);
        if (matrix && !is_contiguous(tensor)) return refusal(OTHER_LAYOUT, 0, column);
        const Tensor& logits = c.tensors[0];
        if (tensor.sizes[0] != logits.sizes[0] || (matrix && tensor.sizes[1] != logits.sizes[1])) return refusal(WRONG_SHAPE, 0, column);
        spans.push_back({tensor.data, tensor.data + tensor.count * element_bytes(dtype), column >= only_read, 0, column});
    }
    if (!reader.done() || a.threads < 1) return refusal(WRONG_ARGUMENTS);
    c.rows = c.tensors[0].sizes[0], c.classes = c.tensors[0].sizes[1], c.threads = a.threads;
    if (c.classes > std::numeric_limits<int32_t>::max()) return refusal(WRONG_SHAPE);
    c.ignored_label = a.ignored_label, c.smoothing = a.smoothing;
    return overlap(spans);
}

static int64_t call(const Arguments* arguments, const std::vector<Dtype>& dtypes, int64_t only_read, void of_floats(const Call&), void of_halves(const Call&)) {
    if (!arguments) return refusal(WRONG_ARGUMENTS);
    try {
        Call c;
        if (const int64_t code = read(*arguments, dtypes, only_read, c)) return code;
        (c.tensors[0].dtype == FLOAT32 ? of_floats : of_halves)(c);
    } catch (const std::bad_alloc&) {
        return refusal(OUT_OF_MEMORY);
    }
    return FINE;
}

extern "C" int64_t cross_entropy_forward(const Arguments* arguments) {
    return call(arguments, {OTHER, INT64, FLOAT32, FLOAT32}, 2, forward<float>, forward<BFloat16>);
}

extern "C" int64_t cross_entropy_backward(const Arguments* arguments) {
    return call(arguments, {OTHER, INT64, FLOAT32, FLOAT32, OTHER}, 4, backward<float>, backward<BFloat16>);
}
