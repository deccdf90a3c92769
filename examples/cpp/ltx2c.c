/* The one unit of a program that holds ltx2c's code; C or C++. */
#define LTX2C_IMPLEMENTATION
#include <ltx2c.h>
