# SPDX-License-Identifier: Apache-2.0
# apt-get install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR rv32imac)
set(CMAKE_C_COMPILER riscv64-unknown-elf-gcc)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(PL_PORT virt_rv32)
set(PL_MACHINE -march=rv32imac -mabi=ilp32 -mcmodel=medany)
set(PL_FLASH_AT 0x80000000)
set(PL_RAM_AT 0x80400000)
set(PL_RAM_BYTES 3072) # with ...
set(PL_STACK_BYTES 1024)
