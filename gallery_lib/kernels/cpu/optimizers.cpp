// Steps of Adam, AdamW, SGD, RMSprop and RAdam over many fp32 tensors, in one pass over memory: torch.optim's formulas, in fp32 as
// there. Tensors that a loop is not written for are refused before anything is written (tensor.h).
#include <cmath>
#include <cstdint>
#include <new>
#include <thread>
#include <vector>

#include "tensor.h"

struct Tensors {  // as in cpu_optimizers.py
    const int64_t* descriptors;  // of tensors row by row: weight, gradient, first state, second state (tensor.h)
    int64_t length;              // of `descriptors`, in numbers
    int64_t rows, columns;
    int64_t threads;
};

constexpr int64_t MOST_COLUMNS = 4, GRADIENT = 1;

struct Row {
    float *weight, *gradient, *first, *second;  // states, or null where there are fewer columns
    int64_t count;
};

// Fills `rows`, or says which tensor is refused and why.
static int64_t read_rows(const Tensors* tensors, int64_t fewest, int64_t most, std::vector<Row>& rows) {
    if (!tensors) return refusal(WRONG_ARGUMENTS);
    const Tensors t = *tensors;
    if (t.rows < 0 || t.columns < fewest || t.columns > most || t.rows > t.length) return refusal(WRONG_ARGUMENTS);
    Reader reader{t.descriptors, t.length, t.rows * t.columns};
    std::vector<Span> spans;
    spans.reserve(t.rows * t.columns);
    rows.reserve(t.rows);
    for (int64_t row = 0; row < t.rows; row++) {
        Tensor of_row[MOST_COLUMNS];
        float* data[MOST_COLUMNS] = {};
        for (int64_t column = 0; column < t.columns; column++) {
            Tensor& tensor = of_row[column];
            if (!reader.next(tensor)) return refusal(WRONG_ARGUMENTS, row, column);
            Reason reason = checked(tensor, FLOAT32);
            if (!reason && !same_sizes(of_row[0], tensor)) reason = WRONG_SHAPE;
            if (!reason && tensor.count && !same_strides(of_row[0], tensor)) reason = OTHER_LAYOUT;
            if (reason) return refusal(reason, row, column);
            data[column] = tensor.as<float>();
            if (tensor.count) spans.push_back({tensor.data, tensor.data + tensor.count * sizeof(float), column != GRADIENT, row, column});
        }
        rows.push_back({data[0], data[1], data[2], data[3], of_row[0].count});
    }
    return reader.done() ? overlap(spans) : refusal(WRONG_ARGUMENTS);
}

// Calls step(row, from, to) for all elements; each thread has an equal part of them.
template <class Step>
static void in_parallel(const std::vector<Row>& rows, int64_t most_threads, Step step) {
    int64_t total = 0;
    for (const Row& row : rows) total += row.count;
    const auto part = [&](int64_t from, int64_t to) {
        int64_t begin = 0;  // of the tensor, counted over all
        for (size_t i = 0; i < rows.size() && begin < to; begin += rows[i++].count) {
            const int64_t first = std::max<int64_t>(from - begin, 0), last = std::min(to - begin, rows[i].count);
            if (first < last) step(i, first, last);
        }
    };
    constexpr int64_t SMALLEST = 1 << 15;  // elements that are worth a thread
    const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(most_threads, total / SMALLEST));
    std::vector<std::thread> others;
    int64_t started = 1;
    try {
        others.reserve(threads - 1);
        for (; started < threads; started++) others.emplace_back(part, total * started / threads, total * (started + 1) / threads);
    } catch (...) {  // the machine gives no more threads: this one does their parts
    }
    part(0, total / threads);
    if (started < threads) part(total * started / threads, total);
    for (auto& each : others) each.join();
}

// Reads the rows, then has `run(rows)` step them; returns 0, or what was refused.
template <class Run>
static int64_t stepped(const Tensors* tensors, const void* options, int64_t fewest, int64_t most, Run run) {
    if (!options) return refusal(WRONG_ARGUMENTS);
    std::vector<Row> rows;
    try {
        if (const int64_t refused = read_rows(tensors, fewest, most, rows)) return refused;
    } catch (const std::bad_alloc&) {
        return refusal(OUT_OF_MEMORY);
    }
    return run(rows);
}

// Gradient with the sign of the direction and coupled weight decay. Without decay the weight is not read, since 0 · inf is NaN.
static inline float decayed(float sign, float gradient, float weight_decay, float weight) {
    return weight_decay != 0.0f ? sign * gradient + weight_decay * weight : sign * gradient;
}

// torch.lerp's formula, exact at both ends.
static inline float lerped(float from, float to, float part) {
    return part < 0.5f ? from + part * (to - from) : to - (to - from) * (1.0f - part);
}

struct RMSprop {
    double alpha;
    float learning_rate, weight_decay, epsilon, momentum, sign;  // sign: -1 to maximize
};

// The loops are functions of their own: what a compiler knows not to overlap is parameters, not what a lambda has captured.
template <bool MOMENTUM>
static void rmsprop_part(
    const RMSprop o, int64_t count, float* __restrict__ weight, const float* __restrict__ gradient, float* __restrict__ square,
    float* __restrict__ buffer) {
    const float alpha = float(o.alpha), rest = float(1.0 - o.alpha);
    for (int64_t at = 0; at < count; at++) {
        const float g = decayed(o.sign, gradient[at], o.weight_decay, weight[at]);
        square[at] = square[at] * alpha + rest * g * g;
        float direction = g / (std::sqrt(square[at]) + o.epsilon);
        if (MOMENTUM) direction = buffer[at] = buffer[at] * o.momentum + direction;
        weight[at] -= o.learning_rate * direction;
    }
}

extern "C" int64_t rmsprop(const Tensors* tensors, const RMSprop* options) {
    return stepped(tensors, options, 3, 4, [&](const std::vector<Row>& rows) {
        const RMSprop o = *options;
        const auto part = tensors->columns == 4 ? rmsprop_part<true> : rmsprop_part<false>;
        in_parallel(rows, tensors->threads, [&](size_t i, int64_t from, int64_t to) {
            const Row& row = rows[i];
            float* buffer = row.second ? row.second + from : nullptr;
            part(o, to - from, row.weight + from, row.gradient + from, row.first + from, buffer);
        });
        return int64_t(FINE);
    });
}

struct RAdam {
    double beta1, beta2;
    float weight_decay, epsilon, sign;
    float keep;               // what decoupled weight decay leaves of a weight
    const float* rates;       // of each tensor: the learning rate over the first moment's bias correction
    const float* rectifiers;  // … rectification times the square root of the second's, or 0: no adaptation yet
    int64_t numbers;          // in each of both
};

template <bool ADAPTED>
static void radam_part(
    const RAdam o, int64_t count, float rate, float rectifier, float* __restrict__ weight, const float* __restrict__ gradient,
    float* __restrict__ average, float* __restrict__ square) {
    const float beta2 = float(o.beta2), rest1 = float(1.0 - o.beta1), rest2 = float(1.0 - o.beta2);
    for (int64_t at = 0; at < count; at++) {
        const float kept = weight[at] * o.keep;
        const float g = decayed(o.sign, gradient[at], o.weight_decay, kept);
        average[at] = lerped(average[at], g, rest1);
        square[at] = square[at] * beta2 + rest2 * g * g;
        const float step = rate * average[at];
        weight[at] = kept - (ADAPTED ? step * (rectifier / (std::sqrt(square[at]) + o.epsilon)) : step);
    }
}

extern "C" int64_t radam(const Tensors* tensors, const RAdam* options) {
    return stepped(tensors, options, 4, 4, [&](const std::vector<Row>& rows) {
        const RAdam o = *options;
        if (!o.rates || !o.rectifiers || o.numbers != tensors->rows) return refusal(WRONG_ARGUMENTS);
        in_parallel(rows, tensors->threads, [&](size_t i, int64_t from, int64_t to) {
            const Row& row = rows[i];
            const auto part = o.rectifiers[i] > 0.0f ? radam_part<true> : radam_part<false>;
            part(o, to - from, o.rates[i], o.rectifiers[i], row.weight + from, row.gradient + from, row.first + from, row.second + from);
        });
        return int64_t(FINE);
    });
}

struct Adam {
    double beta1, beta2;
    float weight_decay, epsilon, sign;
    float keep;           // what decoupled weight decay leaves of a weight
    const float* rates;   // of each tensor: the learning rate over the first moment's bias correction
    const float* roots;   // … one over the square root of the second's
    int64_t numbers;      // in each of both
};

static void adam_part(
    const Adam o, int64_t count, float rate, float root, float* __restrict__ weight, const float* __restrict__ gradient,
    float* __restrict__ average, float* __restrict__ square) {
    const float beta2 = float(o.beta2), rest1 = float(1.0 - o.beta1), rest2 = float(1.0 - o.beta2);
    for (int64_t at = 0; at < count; at++) {
        const float kept = weight[at] * o.keep;
        const float g = decayed(o.sign, gradient[at], o.weight_decay, kept);
        average[at] = lerped(average[at], g, rest1);
        square[at] = square[at] * beta2 + rest2 * g * g;
        weight[at] = kept - rate * (average[at] / (std::sqrt(square[at]) * root + o.epsilon));
    }
}

extern "C" int64_t adam(const Tensors* tensors, const Adam* options) {
    return stepped(tensors, options, 4, 4, [&](const std::vector<Row>& rows) {
        const Adam o = *options;
        if (!o.rates || !o.roots || o.numbers != tensors->rows) return refusal(WRONG_ARGUMENTS);
        in_parallel(rows, tensors->threads, [&](size_t i, int64_t from, int64_t to) {
            const Row& row = rows[i];
            adam_part(
                o, to - from, o.rates[i], o.roots[i], row.weight + from, row.gradient + from, row.first + from, row.second + from);
        });
        return int64_t(FINE);
    });
}

struct SGD {
    float learning_rate, weight_decay, momentum, sign;
    int64_t nesterov;
};

template <bool MOMENTUM, bool NESTEROV>
static void sgd_part(
    const SGD o, int64_t count, float* __restrict__ weight, const float* __restrict__ gradient, float* __restrict__ buffer) {
    for (int64_t at = 0; at < count; at++) {
        const float g = decayed(o.sign, gradient[at], o.weight_decay, weight[at]);
        float direction = g;
        if (MOMENTUM) {
            buffer[at] = buffer[at] * o.momentum + g;
            direction = NESTEROV ? g + o.momentum * buffer[at] : buffer[at];
        }
        weight[at] -= o.learning_rate * direction;
    }
}

extern "C" int64_t sgd(const Tensors* tensors, const SGD* options) {
    return stepped(tensors, options, 2, 3, [&](const std::vector<Row>& rows) {
        const SGD o = *options;
        const bool momentum = tensors->columns == 3;
        const auto part = !momentum ? sgd_part<false, false> : o.nesterov ? sgd_part<true, true> : sgd_part<true, false>;
        in_parallel(rows, tensors->threads, [&](size_t i, int64_t from, int64_t to) {
            const Row& row = rows[i];
            part(o, to - from, row.weight + from, row.gradient + from, row.first ? row.first + from : nullptr);
        });
        return int64_t(FINE);
    });
}
