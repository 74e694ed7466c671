// Steps of RMSprop and RAdam over many fp32 tensors, in one pass over memory: torch.optim's formulas, in fp32 as there.
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
    float* const* first;   // RMSprop: averages of squares. RAdam: averages of gradients
    float* const* second;  // RMSprop: momentum buffers, or null. RAdam: averages of squares
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

extern "C" void rmsprop(const Tensors* tensors, const RMSprop* options) {
    const Tensors t = *tensors;
    const RMSprop o = *options;
    const float rest = float(1.0 - double(o.alpha));
    in_parallel(t, [&](int64_t i, int64_t from, int64_t to) {
        float* __restrict__ weight = t.weights[i];
        const float* __restrict__ gradient = t.gradients[i];
        float* __restrict__ square = t.first[i];
        float* __restrict__ buffer = t.second ? t.second[i] : nullptr;
        const auto direction = [&](int64_t at) {
            const float g = o.sign * gradient[at] + o.weight_decay * weight[at];
            square[at] = square[at] * o.alpha + rest * g * g;
            return g / (std::sqrt(square[at]) + o.epsilon);
        };
        if (buffer)
            for (int64_t at = from; at < to; at++) {
                buffer[at] = buffer[at] * o.momentum + direction(at);
                weight[at] -= o.learning_rate * buffer[at];
            }
        else
            for (int64_t at = from; at < to; at++) weight[at] -= o.learning_rate * direction(at);
    });
}

struct RAdam {
    float weight_decay, beta1, beta2, epsilon, sign;
    float keep;                // what decoupled weight decay leaves of a weight
    const float* rates;        // of each tensor: the learning rate over the first moment's bias correction
    const float* rectifiers;   // … rectification times the square root of the second's, or 0: no adaptation yet
};

extern "C" void radam(const Tensors* tensors, const RAdam* options) {
    const Tensors t = *tensors;
    const RAdam o = *options;
    const float rest1 = float(1.0 - double(o.beta1)), rest2 = float(1.0 - double(o.beta2));
    in_parallel(t, [&](int64_t i, int64_t from, int64_t to) {
        float* __restrict__ weight = t.weights[i];
        const float* __restrict__ gradient = t.gradients[i];
        float* __restrict__ average = t.first[i];
        float* __restrict__ square = t.second[i];
        const float rate = o.rates[i], rectifier = o.rectifiers[i];
        const auto moments = [&](int64_t at, float kept) {
            const float g = o.sign * gradient[at] + o.weight_decay * kept;
            average[at] += rest1 * (g - average[at]);
            square[at] = square[at] * o.beta2 + rest2 * g * g;
        };
        if (rectifier > 0.0f)
            for (int64_t at = from; at < to; at++) {
                const float kept = weight[at] * o.keep;
                moments(at, kept);
                weight[at] = kept - rate * average[at] * (rectifier / (std::sqrt(square[at]) + o.epsilon));
            }
        else
            for (int64_t at = from; at < to; at++) {
                const float kept = weight[at] * o.keep;
                moments(at, kept);
                weight[at] = kept - rate * average[at];
            }
    });
}
