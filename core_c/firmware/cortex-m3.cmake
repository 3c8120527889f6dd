# SPDX-License-Identifier: Apache-2.0
# apt-get install gcc-arm-none-eabi picolibc-arm-none-eabi
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR cortex-m3)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(PL_PORT mps2_an385)
set(PL_MACHINE -mcpu=cortex-m3 -mthumb)
set(PL_FLASH_AT 0x0)
set(PL_RAM_AT 0x20000000)
set(PL_RAM_BYTES 2048) # with ...
set(PL_STACK_BYTES 664)
