// Memory of the device and pinned memory of the host. Both are host memory; memory of the device is
// filled with 0xFF when it is given and when it is taken back, which is NaN in every float type.
#include "device.h"

namespace fake {
namespace {

struct Block {
    size_t bytes;
    int device;  // -1: pinned memory of the host
    bool ours;   // false: the caller's memory, which is only registered
};

std::map<char*, Block> blocks;
std::map<int, size_t> used;
long allocations = 0;

// The first allocation that finds no memory; -1: there is none.
long chosen() {
    const char* text = getenv("FAKE_GPU_FAIL_ALLOCATION");
    return text ? atol(text) : -1;
}
long failing_from = chosen();

size_t capacity() {
    static const char* text = getenv("FAKE_GPU_MEMORY");
    static const size_t bytes = text ? strtoull(text, nullptr, 10) : size_t(8) << 30;
    return bytes;
}

cudaError_t take(void** address, size_t bytes, int device) {
    note_use("context");
    std::lock_guard<std::recursive_mutex> held(lock);
    *address = nullptr;
    if (bytes == 0) bytes = 1;
    if (device >= 0) {
        allocations++;
        if (failing_from >= 0 && allocations >= failing_from) return cudaErrorMemoryAllocation;
        if (used[device] + bytes > capacity()) return cudaErrorMemoryAllocation;
    }
    if (posix_memalign(address, 512, bytes)) return cudaErrorMemoryAllocation;
    memset(*address, device >= 0 ? 0xFF : 0, bytes);
    blocks[static_cast<char*>(*address)] = {bytes, device, true};
    used[device] += bytes;
    return cudaSuccess;
}

cudaError_t give(void* address) {
    if (!address) return cudaSuccess;
    int device;
    {
        std::lock_guard<std::recursive_mutex> held(lock);
        auto found = blocks.find(static_cast<char*>(address));
        if (found == blocks.end()) return cudaErrorInvalidValue;
        device = found->second.device;
    }
    // As on a device: memory is taken back after all that was enqueued before.
    for (int every = 0; every < devices(); every++)
        if (device < 0 || every == device) wait_for_device(every);
    std::lock_guard<std::recursive_mutex> held(lock);
    auto found = blocks.find(static_cast<char*>(address));
    used[device] -= found->second.bytes;
    memset(address, 0xFF, found->second.bytes);
    blocks.erase(found);
    free(address);
    return cudaSuccess;
}

Block* block_of(const void* address) {
    auto after = blocks.upper_bound(const_cast<char*>(static_cast<const char*>(address)));
    if (after == blocks.begin()) return nullptr;
    --after;
    bool inside = static_cast<const char*>(address) < after->first + after->second.bytes;
    return inside ? &after->second : nullptr;
}

// A copy between memory of any kind. Pageable memory of the host is read at the call, and is
// written before the call returns, as the driver does.
cudaError_t copy(void* to, const void* from, size_t bytes, Stream* stream) {
    int device;
    if (bytes == 0) return cudaSuccess;
    if (!kind_of_memory(from, &device)) {
        auto staged = std::make_shared<std::vector<char>>(
            static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
        return enqueue(stream, [=] { memcpy(to, staged->data(), bytes); return cudaSuccess; });
    }
    cudaError_t error = enqueue(stream, [=] { memmove(to, from, bytes); return cudaSuccess; });
    if (error == cudaSuccess && !kind_of_memory(to, &device) && !stream->capture)
        error = wait_of_the_host("a copy to pageable memory", stream);
    return error;
}

}  // namespace

const char* kind_of_memory(const void* address, int* device) {
    std::lock_guard<std::recursive_mutex> held(lock);
    Block* block = block_of(address);
    if (!block) return nullptr;
    *device = block->device < 0 ? 0 : block->device;
    return block->device < 0 ? "pinned" : "device";
}

}  // namespace fake

using namespace fake;

API void fake_gpu_fail_allocation(long from) {
    std::lock_guard<std::recursive_mutex> held(lock);
    allocations = 0;
    failing_from = from;
}

API long fake_gpu_allocations() { return allocations; }

API cudaError_t cudaMalloc(void** address, size_t bytes) {
    count("cudaMalloc");
    return take(address, bytes, current_device());
}
API cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t) {
    return cudaMalloc(address, bytes);
}
API cudaError_t cudaFree(void* address) {
    count("cudaFree");
    return give(address);
}
API cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }
API cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
    count("cudaHostAlloc");
    return take(address, bytes, -1);
}
API cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
API cudaError_t cudaFreeHost(void* address) { return give(address); }
API cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
    std::lock_guard<std::recursive_mutex> held(lock);
    blocks[static_cast<char*>(address)] = {bytes, -1, false};
    return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void* address) {
    std::lock_guard<std::recursive_mutex> held(lock);
    blocks.erase(static_cast<char*>(address));
    return cudaSuccess;
}
API cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    std::lock_guard<std::recursive_mutex> held(lock);
    *total = capacity();
    *free_bytes = capacity() - used[current_device()];
    return cudaSuccess;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) {
    std::lock_guard<std::recursive_mutex> held(lock);
    auto after = blocks.upper_bound(reinterpret_cast<char*>(address));
    if (!block_of(reinterpret_cast<void*>(address))) return CUDA_ERROR_NOT_FOUND;
    --after;
    if (begin) *begin = reinterpret_cast<CUdeviceptr>(after->first);
    if (bytes) *bytes = after->second.bytes;
    return CUDA_SUCCESS;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    memset(attributes, 0, sizeof *attributes);
    int device = 0;
    const char* kind = kind_of_memory(address, &device);
    attributes->device = kind ? device : cudaInvalidDeviceId;
    attributes->type = !kind                   ? cudaMemoryTypeUnregistered
                       : !strcmp(kind, "device") ? cudaMemoryTypeDevice
                                                 : cudaMemoryTypeHost;
    if (kind) attributes->devicePointer = const_cast<void*>(address);
    if (kind && *kind == 'p') attributes->hostPointer = const_cast<void*>(address);
    return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t s) {
    count("cudaMemcpyAsync");
    return copy(to, from, bytes, stream_of(s));
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    count("cudaMemcpy");
    cudaError_t error = copy(to, from, bytes, stream_of(nullptr));
    return error ? error : wait_of_the_host("cudaMemcpy", stream_of(nullptr));
}
API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t s) {
    count("cudaMemcpyPeerAsync");
    return copy(to, from, bytes, stream_of(s));
}
API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                  size_t width, size_t height, cudaMemcpyKind, cudaStream_t s) {
    count("cudaMemcpy2DAsync");
    for (size_t row = 0; row < height; row++)
        copy(static_cast<char*>(to) + row * to_pitch,
             static_cast<const char*>(from) + row * from_pitch, width, stream_of(s));
    return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t s) {
    count("cudaMemsetAsync");
    return enqueue(stream_of(s), [=] { memset(address, value, bytes); return cudaSuccess; });
}
API cudaError_t cudaMemset(void* address, int value, size_t bytes) {
    return cudaMemsetAsync(address, value, bytes, nullptr);
}
API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
    return cudaSuccess;  // constants of torch's own kernels, which do not run here
}
API cudaError_t cudaGetSymbolAddress(void** address, const void*) {
    static char symbol[1 << 16];
    *address = symbol;
    return cudaSuccess;
}
