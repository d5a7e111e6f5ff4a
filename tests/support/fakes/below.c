/* The functions that NVIDIA's bindings look up in TensorRT's libraries; Python sets what they do. */
#include <stddef.h>

void *(*new_builder)(void *logger);
void *(*new_runtime)(void *logger);
void *(*new_parser)(void *network, void *logger);

void *createInferBuilder_INTERNAL(void *logger) { return new_builder(logger); }
void *createInferRuntime_INTERNAL(void *logger) { return new_runtime(logger); }
void *createNvOnnxParser_INTERNAL(void *network, void *logger) { return new_parser(network, logger); }
void *createInferRefitter_INTERNAL(void) { return NULL; }
void *createNvOnnxParserRefitter_INTERNAL(void) { return NULL; }
void *getBuilderPluginRegistry(void) { return NULL; }
void *getPluginRegistry(void) { return NULL; }
int getNvOnnxParserVersion(void) { return 0; }
int initLibNvInferPlugins(void) { return 0; }
