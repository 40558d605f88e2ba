/* SPDX-License-Identifier: MIT
 *
 * A library of that name and nothing else in it.
 */
int pretended_nothing(void);
int pretended_nothing(void) {
    return 0;
}
