// What the device says of itself: an H100 with as much memory as FAKE_GPU_MEMORY says.
#include "device.h"

using namespace fake;

namespace {

constexpr int THREADS_OF_A_BLOCK = 1024, PROCESSORS = 132, WARP = 32;
constexpr int CUDA_VERSION_OF_THE_DRIVER = 13000;

size_t total_memory() {
    size_t free_bytes, total;
    cudaMemGetInfo(&free_bytes, &total);
    return total;
}

}  // namespace

int fake::architecture(int device) {
    const char* text = getenv("FAKE_GPU_ARCHITECTURES");  // of the devices in their order: 90,80
    for (; text && device > 0; device--) text = strchr(text, ',') ? strchr(text, ',') + 1 : nullptr;
    return text ? atoi(text) : 90;
}

API cudaError_t cudaGetDeviceCount(int* number) {
    note_use("driver");
    *number = devices();
    return cudaSuccess;
}
API cudaError_t cudaGetDevice(int* device) {
    *device = current_device();
    return cudaSuccess;
}
API cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
    note_use("context");
    make_current(device);
    return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* given, int device) {
    memset(given, 0, sizeof *given);
    note_use("properties");
    strcpy(given->name, NAME);
    given->totalGlobalMem = total_memory();
    given->major = architecture(device) / 10;
    given->minor = architecture(device) % 10;
    given->multiProcessorCount = PROCESSORS;
    given->sharedMemPerBlock = 48 << 10;
    given->sharedMemPerBlockOptin = 227 << 10;
    given->sharedMemPerMultiprocessor = 228 << 10;
    given->regsPerBlock = given->regsPerMultiprocessor = 65536;
    given->warpSize = WARP;
    given->maxThreadsPerBlock = THREADS_OF_A_BLOCK;
    given->maxThreadsPerMultiProcessor = 2048;
    given->maxThreadsDim[0] = given->maxThreadsDim[1] = THREADS_OF_A_BLOCK;
    given->maxThreadsDim[2] = 64;
    given->maxGridSize[0] = 2147483647;
    given->maxGridSize[1] = given->maxGridSize[2] = 65535;
    given->maxBlocksPerMultiProcessor = 32;
    given->l2CacheSize = 50 << 20;
    given->memoryBusWidth = 5120;
    given->textureAlignment = 512;
    given->asyncEngineCount = 3;
    given->unifiedAddressing = given->concurrentKernels = given->canMapHostMemory = 1;
    return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    static const std::map<int, int> known = {
        {cudaDevAttrMaxThreadsPerBlock, THREADS_OF_A_BLOCK},
        {cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 << 10},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 228 << 10},
        {cudaDevAttrWarpSize, WARP},
        {cudaDevAttrMultiProcessorCount, PROCESSORS},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMaxRegistersPerBlock, 65536},
        {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
        {cudaDevAttrMaxGridDimX, 2147483647},
        {cudaDevAttrClockRate, 1980000},
        {cudaDevAttrMemoryClockRate, 2619000},
        {cudaDevAttrGlobalMemoryBusWidth, 5120},
        {cudaDevAttrL2CacheSize, 50 << 20},
        {cudaDevAttrUnifiedAddressing, 1},
    };
    auto found = known.find(attribute);
    *value = found == known.end() ? 0 : found->second;
    if (attribute == cudaDevAttrComputeCapabilityMajor) *value = architecture(device) / 10;
    if (attribute == cudaDevAttrComputeCapabilityMinor) *value = architecture(device) % 10;
    return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDA_VERSION_OF_THE_DRIVER;
    return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = 0;
    return cudaSuccess;
}
API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
API cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
    snprintf(text, bytes, "0000:00:%02x.0", device + 1);
    return cudaSuccess;
}
API cudaError_t cudaProfilerStart() { return cudaSuccess; }
API cudaError_t cudaProfilerStop() { return cudaSuccess; }

API cudaError_t cudaGetLastError() { return cudaSuccess; }
API cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
API const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorNotReady: return "cudaErrorNotReady";
        case cudaErrorNotPermitted: return "cudaErrorNotPermitted";
        case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
        case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
        case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
        default: return "an error of the fake GPU";
    }
}
API const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorNotPermitted: return "the host waits for the device where a test forbids it";
        case cudaErrorLaunchFailure: return "unspecified launch failure";
        case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        case cudaErrorInvalidResourceHandle: return "invalid resource handle";
        default: return cudaGetErrorName(error);
    }
}
