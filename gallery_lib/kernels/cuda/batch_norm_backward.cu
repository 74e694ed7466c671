// The gradient of batch normalisation with ReLU: two sums over each channel, then the gradient of the input from them.
// ReLU's mask is computed from the input, which has to be read anyway.
#include "batch_norm.cuh"

struct SumsArguments {
    Shape shape;
    const ELEMENT *gradient, *x;
    Channels channels;
    float *products, *gradients;   // [slabs, C]: sums of gradient · (x − mean), and of the gradient
};

struct SumsScratch {
    float products[WARPS][TILE * WIDTH], gradients[WARPS][TILE * WIDTH];
};

template <int COUNT>
static __device__ __forceinline__ void sums_of_slab(const SumsArguments& a, SumsScratch& scratch) {
    Place place = place_of_thread<COUNT>(a.shape);
    float products[COUNT] = {}, gradients[COUNT] = {};
    if (place.rows > 0) {
        Affine<COUNT> affine(a.channels, place.channel);
#pragma unroll 1  // two rows at once take more than the 64 registers that four blocks leave a thread
        for (int row = 0; row < place.rows; row++, place.at += place.step) {
            auto gradient = load_vector<COUNT>(a.gradient + place.at), x = load_vector<COUNT>(a.x + place.at);
            for (int lane = 0; lane < COUNT; lane++) {
                float value = to_float(x.at[lane]), passed = to_float(gradient.at[lane]);
                if (is_blocked(affine(lane, value))) passed = 0.0f;
                gradients[lane] += passed;
                products[lane] = fmaf(passed, value - affine.mean[lane], products[lane]);
            }
        }
    }
    int warp = threadIdx.x / 32, column = threadIdx.x % 32;
    for (int lane = 0; lane < COUNT; lane++) {
        for (int distance = TILE; distance < 32; distance *= 2) {
            products[lane] += __shfl_xor_sync(0xffffffffu, products[lane], distance);
            gradients[lane] += __shfl_xor_sync(0xffffffffu, gradients[lane], distance);
        }
        if (column < TILE) {
            scratch.products[warp][column * COUNT + lane] = products[lane];
            scratch.gradients[warp][column * COUNT + lane] = gradients[lane];
        }
    }
    __syncthreads();
    int own = threadIdx.x, channel = place.first_channel + own;
    if (own >= TILE * COUNT || channel >= a.shape.channels) return;
    float product = 0, gradient = 0;
    for (int other = 0; other < WARPS; other++) product += scratch.products[other][own], gradient += scratch.gradients[other][own];
    a.products[(long long)place.slab * a.shape.channels + channel] = product;
    a.gradients[(long long)place.slab * a.shape.channels + channel] = gradient;
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) batch_norm_sums(const __grid_constant__ SumsArguments a) {
    __shared__ SumsScratch scratch;
    if (a.shape.in_vectors)
        sums_of_slab<WIDTH>(a, scratch);
    else
        sums_of_slab<1>(a, scratch);
}

struct TotalsArguments {
    const float *products, *gradients;  // [slabs, C]
    const float* inverse_deviation;     // [C]
    int slabs, channels;
    float *of_weight, *of_bias;         // [C]
};

extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_totals(const __grid_constant__ TotalsArguments a) {
    __shared__ double scratch[2][WARPS][TILE];
    int channel = blockIdx.x * TILE + threadIdx.x % TILE, slabs = channel < a.channels ? a.slabs : 0;
    double product = 0, gradient = 0;
    for (int slab = threadIdx.x / TILE; slab < slabs; slab += LANES) {
        product += a.products[(long long)slab * a.channels + channel];
        gradient += a.gradients[(long long)slab * a.channels + channel];
    }
    product = over_lanes(product, scratch[0]);
    gradient = over_lanes(gradient, scratch[1]);
    if (threadIdx.x >= TILE || channel >= a.channels) return;
    a.of_weight[channel] = float(product * a.inverse_deviation[channel]);
    a.of_bias[channel] = float(gradient);
}

struct InputArguments {
    Shape shape;
    const ELEMENT *gradient, *x;
    Channels channels;
    const float *of_weight, *of_bias;  // [C]
    ELEMENT* of_x;
};

template <int COUNT>
static __device__ __forceinline__ void gradient_of_slab(const InputArguments& a) {
    Place place = place_of_thread<COUNT>(a.shape);
    if (place.rows == 0) return;
    Affine<COUNT> affine(a.channels, place.channel);
    float share = float(1.0 / double(a.shape.rows)), average[COUNT], slope[COUNT];
    for (int lane = 0; lane < COUNT; lane++) {
        average[lane] = a.of_bias[place.channel + lane] * share;
        slope[lane] = a.of_weight[place.channel + lane] * a.channels.inverse_deviation[place.channel + lane] * share;
    }
    for (int row = 0; row < place.rows; row++, place.at += place.step) {
        auto gradient = load_vector<COUNT>(a.gradient + place.at), x = load_vector<COUNT>(a.x + place.at);
        for (int lane = 0; lane < COUNT; lane++) {
            float value = to_float(x.at[lane]), passed = to_float(gradient.at[lane]);
            if (is_blocked(affine(lane, value))) passed = 0.0f;
            from_float(affine.scale[lane] * (passed - average[lane] - (value - affine.mean[lane]) * slope[lane]), x.at[lane]);
        }
        store_vector(a.of_x + place.at, x);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) batch_norm_input(const __grid_constant__ InputArguments a) {
    if (a.shape.in_vectors)
        gradient_of_slab<WIDTH>(a);
    else
        gradient_of_slab<1>(a);
}
