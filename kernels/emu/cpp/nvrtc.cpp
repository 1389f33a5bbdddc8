// A stand-in for libnvrtc: it takes a source and its headers, and gives an image that the stand-in driver loads.
// A source with `#error` fails, as it would.
#include "standin.h"
#include <cstdlib>

namespace {
enum Status { OK = 0, INVALID_PROGRAM = 3, COMPILATION = 6 };
struct Program { std::string text; bool compiled = false; };
const std::string LOG = "stand-in compiler: this source says #error";
}  // namespace

API nvrtcVersion(int* major, int* minor) { *major = 13, *minor = 0; return OK; }
API nvrtcCreateProgram(void** to, const char* text, const char*, int, const char* const*, const char* const*) {
  *to = new Program{text};
  return OK;
}
API nvrtcDestroyProgram(void** program) { delete static_cast<Program*>(*program); *program = nullptr; return OK; }
API nvrtcCompileProgram(void* program, int, const char* const*) {
  auto* p = static_cast<Program*>(program);
  p->compiled = p->text.find("#error") == std::string::npos;
  return p->compiled ? OK : COMPILATION;
}
API nvrtcGetProgramLogSize(void*, size_t* bytes) { *bytes = LOG.size() + 1; return OK; }
API nvrtcGetProgramLog(void*, char* log) { memcpy(log, LOG.c_str(), LOG.size() + 1); return OK; }
API nvrtcGetCUBINSize(void* program, size_t* bytes) {
  *bytes = sizeof standin::IMAGE_MARK;
  return static_cast<Program*>(program)->compiled ? OK : INVALID_PROGRAM;
}
API nvrtcGetCUBIN(void*, char* image) { memcpy(image, standin::IMAGE_MARK, sizeof standin::IMAGE_MARK); return OK; }
