/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A main for a fuzz target where there is no libFuzzer: with other compilers, and on other machines. Gives the target
 * each file once; the last line is "N passed, 0 failed". What is wrong ends the program.
 *
 *   replay_NAME FILE...
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_BYTES_MAX = 1 << 20 };

int main(int argc, char **argv)
{
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        uint8_t *bytes = malloc(INPUT_BYTES_MAX);
        if (!file || !bytes) {
            perror(argv[i]);
            return 1;
        }
        size_t size = fread(bytes, 1, INPUT_BYTES_MAX, file);
        fclose(file);
        uint8_t *input = realloc(bytes, size ? size : 1); /* its end is the end of what is allocated */
        if (!input)
            return 1;
        LLVMFuzzerTestOneInput(input, size);
        free(input);
    }
    printf("%d passed, 0 failed\n", argc - 1);
    return 0;
}
