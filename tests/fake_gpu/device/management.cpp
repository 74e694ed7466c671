// NVML, which tells what devices there are without a context on them. library.py gives this library
// the name libnvidia-ml.so.1 as well.
//
// Here is also the log of who uses CUDA itself: where FAKE_GPU_USERS names a file, each process
// writes a line into it for the first call of each kind.
#include "device.h"

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

namespace fake {

void note_use(const char* what) {
    static const char* file = getenv("FAKE_GPU_USERS");
    static std::set<std::string> written;
    static pid_t process = 0;
    std::lock_guard<std::recursive_mutex> held(lock);
    if (!file) return;
    if (process != getpid()) written.clear();
    process = getpid();
    if (!written.insert(what).second) return;
    std::stringstream command;
    command << std::ifstream("/proc/self/cmdline").rdbuf();
    std::string line = std::to_string(process) + "\t" + what + "\t" + command.str();
    for (char& letter : line)
        if (letter == '\0' || letter == '\n') letter = ' ';
    line += "\n";
    int descriptor = open(file, O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (write(descriptor, line.data(), line.size()) < 0) perror(file);
    close(descriptor);
}

}  // namespace fake

using namespace fake;

namespace {

constexpr int DONE = 0, NO_SUCH_ARGUMENT = 2;  // nvmlReturn_t

}  // namespace

API int nvmlInit() { return DONE; }
API int nvmlInit_v2() { return nvmlInit(); }
API int nvmlShutdown() { return DONE; }
API int nvmlDeviceGetCount_v2(unsigned* number) {
    *number = devices();
    return DONE;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned number, uintptr_t* device) {
    *device = number + 1;
    return number < static_cast<unsigned>(devices()) ? DONE : NO_SUCH_ARGUMENT;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char*, uintptr_t* device) { return nvmlDeviceGetHandleByIndex_v2(0, device); }
API int nvmlDeviceGetComputeRunningProcesses(uintptr_t, unsigned* number, void*) {
    *number = 0;
    return DONE;
}
API int nvmlDeviceGetUUID(uintptr_t device, char* text, unsigned bytes) {
    snprintf(text, bytes, "GPU-%08d-0000-0000-0000-000000000000", static_cast<int>(device));
    return DONE;
}
API int nvmlDeviceGetName(uintptr_t, char* text, unsigned bytes) {
    snprintf(text, bytes, "%s", NAME);
    return DONE;
}
API int nvmlDeviceGetCudaComputeCapability(uintptr_t device, int* major, int* minor) {
    *major = architecture(static_cast<int>(device) - 1) / 10;
    *minor = architecture(static_cast<int>(device) - 1) % 10;
    return DONE;
}
