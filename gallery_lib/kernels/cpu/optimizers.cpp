// Steps of Adam, AdamW, SGD, RMSprop and RAdam over many fp32 tensors, in one pass over memory: torch.optim's formulas, in fp32 as there.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

struct Tensors {
    int64_t count;
    const int64_t* sizes;
    float* const* weights;
    const float* const* gradients;
    float* const* first;   // RMSprop: averages of squares. Adam, RAdam: averages of gradients. SGD: momentum buffers, or null
    float* const* second;  // RMSprop: momentum buffers, or null. Adam, RAdam: averages of squares. SGD: null
    int threads;
};

// Calls step(tensor, from, to) for all elements; each thread has an equal part of them.
template <class Step>
static void in_parallel(const Tensors& t, Step step) {
    int64_t total = 0;
    for (int64_t i = 0; i < t.count; i++) total += t.sizes[i];
    const auto part = [&](int64_t from, int64_t to) {
        int64_t begin = 0;  // of the tensor, counted over all
        for (int64_t i = 0; i < t.count && begin < to; begin += t.sizes[i++]) {
            const int64_t first = std::max<int64_t>(from - begin, 0), last = std::min(to - begin, t.sizes[i]);
            if (first < last) step(i, first, last);
        }
    };
    constexpr int64_t SMALLEST = 1 << 15;  // elements that are worth a thread
    const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(t.threads, total / SMALLEST));
    std::vector<std::thread> others;
    for (int64_t n = 1; n < threads; n++) others.emplace_back(part, total * n / threads, total * (n + 1) / threads);
    part(0, total / threads);
    for (auto& each : others) each.join();
}

struct RMSprop {
    float learning_rate, weight_decay, alpha, epsilon, momentum, sign;  // sign: -1 to maximize
};

// The loops are functions of their own: what a compiler knows not to overlap is parameters, not what a lambda has captured.
template <bool MOMENTUM>
static void rmsprop_part(
    const RMSprop o, int64_t count, float* __restrict__ weight, const float* __restrict__ gradient, float* __restrict__ square,
    float* __restrict__ buffer) {
    const float rest = float(1.0 - double(o.alpha));
    for (int64_t at = 0; at < count; at++) {
        const float g = o.sign * gradient[at] + o.weight_decay * weight[at];
        square[at] = square[at] * o.alpha + rest * g * g;
        float direction = g / (std::sqrt(square[at]) + o.epsilon);
        if (MOMENTUM) direction = buffer[at] = buffer[at] * o.momentum + direction;
        weight[at] -= o.learning_rate * direction;
    }
}

extern "C" void rmsprop(const Tensors* tensors, const RMSprop* options) {
    const Tensors t = *tensors;
    const RMSprop o = *options;
    in_parallel(t, [&](int64_t i, int64_t from, int64_t to) {
        float *weight = t.weights[i] + from, *square = t.first[i] + from;
        const float* gradient = t.gradients[i] + from;
        if (t.second)
            rmsprop_part<true>(o, to - from, weight, gradient, square, t.second[i] + from);
        else
            rmsprop_part<false>(o, to - from, weight, gradient, square, nullptr);
    });
}

struct RAdam {
    float weight_decay, beta1, beta2, epsilon, sign;
    float keep;               // what decoupled weight decay leaves of a weight
    const float* rates;       // of each tensor: the learning rate over the first moment's bias correction
    const float* rectifiers;  // … rectification times the square root of the second's, or 0: no adaptation yet
};

template <bool ADAPTED>
static void radam_part(
    const RAdam o, int64_t count, float rate, float rectifier, float* __restrict__ weight, const float* __restrict__ gradient,
    float* __restrict__ average, float* __restrict__ square) {
    const float rest1 = float(1.0 - double(o.beta1)), rest2 = float(1.0 - double(o.beta2));
    for (int64_t at = 0; at < count; at++) {
        const float kept = weight[at] * o.keep;
        const float g = o.sign * gradient[at] + o.weight_decay * kept;
        average[at] += rest1 * (g - average[at]);
        square[at] = square[at] * o.beta2 + rest2 * g * g;
        const float step = rate * average[at];
        weight[at] = kept - (ADAPTED ? step * (rectifier / (std::sqrt(square[at]) + o.epsilon)) : step);
    }
}

extern "C" void radam(const Tensors* tensors, const RAdam* options) {
    const Tensors t = *tensors;
    const RAdam o = *options;
    in_parallel(t, [&](int64_t i, int64_t from, int64_t to) {
        float *weight = t.weights[i] + from, *average = t.first[i] + from, *square = t.second[i] + from;
        const float* gradient = t.gradients[i] + from;
        const auto part = o.rectifiers[i] > 0.0f ? radam_part<true> : radam_part<false>;
        part(o, to - from, o.rates[i], o.rectifiers[i], weight, gradient, average, square);
    });
}

struct Adam {
    float weight_decay, beta1, beta2, epsilon, sign;
    float keep;          // what decoupled weight decay leaves of a weight
    const float* rates;  // of each tensor: the learning rate over the first moment's bias correction
    const float* roots;  // … one over the square root of the second's
};

static void adam_part(
    const Adam o, int64_t count, float rate, float root, float* __restrict__ weight, const float* __restrict__ gradient,
    float* __restrict__ average, float* __restrict__ square) {
    const float rest1 = float(1.0 - double(o.beta1)), rest2 = float(1.0 - double(o.beta2));
    for (int64_t at = 0; at < count; at++) {
        const float kept = weight[at] * o.keep;
        const float g = o.sign * gradient[at] + o.weight_decay * kept;
        average[at] += rest1 * (g - average[at]);
        square[at] = square[at] * o.beta2 + rest2 * g * g;
        weight[at] = kept - rate * (average[at] / (std::sqrt(square[at]) * root + o.epsilon));
    }
}

extern "C" void adam(const Tensors* tensors, const Adam* options) {
    const Tensors t = *tensors;
    const Adam o = *options;
    in_parallel(t, [&](int64_t i, int64_t from, int64_t to) {
        float *weight = t.weights[i] + from, *average = t.first[i] + from, *square = t.second[i] + from;
        adam_part(o, to - from, o.rates[i], o.roots[i], weight, t.gradients[i] + from, average, square);
    });
}

struct SGD {
    float learning_rate, weight_decay, momentum, sign;
    int nesterov;
};

template <bool MOMENTUM, bool NESTEROV>
static void sgd_part(
    const SGD o, int64_t count, float* __restrict__ weight, const float* __restrict__ gradient, float* __restrict__ buffer) {
    for (int64_t at = 0; at < count; at++) {
        const float g = o.sign * gradient[at] + o.weight_decay * weight[at];
        float direction = g;
        if (MOMENTUM) {
            buffer[at] = buffer[at] * o.momentum + g;
            direction = NESTEROV ? g + o.momentum * buffer[at] : buffer[at];
        }
        weight[at] -= o.learning_rate * direction;
    }
}

extern "C" void sgd(const Tensors* tensors, const SGD* options) {
    const Tensors t = *tensors;
    const SGD o = *options;
    const auto part = !t.first ? sgd_part<false, false> : o.nesterov ? sgd_part<true, true> : sgd_part<true, false>;
    in_parallel(t, [&](int64_t i, int64_t from, int64_t to) {
        part(o, to - from, t.weights[i] + from, t.gradients[i] + from, t.first ? t.first[i] + from : nullptr);
    });
}
