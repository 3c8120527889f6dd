/* SPDX-License-Identifier: Apache-2.0 */
#include "pl_meter_internal.h"

/* Frames: COBS(body + CRC-32) between two 0x00. One block of COBS suffices, for no body is longer than 249 bytes. ------ */

uint32_t pl_meter_crc(uint32_t crc, uint8_t byte) {
    crc ^= byte;
    for (unsigned k = 0; k < 8; k++) {
        crc = crc >> 1 ^ ((0u - (crc & 1)) & 0xEDB88320u);
    }
    return crc;
}

/* Speaking ---- */

static void raw(pl_meter *m, uint8_t byte) {
    if (m->tx_to < PL_METER_TX) {
        m->tx[m->tx_to++] = byte;
    } else {
        m->tx_full = 1;
    }
}

/* A run ends at each zero; its length + 1 stands in front of it. */
static void stuff(pl_meter *m, uint8_t byte) {
    if (byte != 0) {
        raw(m, byte);
        return;
    }
    if (!m->tx_full) {
        m->tx[m->tx_code] = (uint8_t)(m->tx_to - m->tx_code);
    }
    m->tx_code = m->tx_to;
    raw(m, 0);
}

static void body_byte(pl_meter *m, uint8_t byte) {
    if (m->tx_room == 0) { /* of a text: the rest is left out */
        return;
    }
    m->tx_room--;
    m->crc = pl_meter_crc(m->crc, byte);
    stuff(m, byte);
}

void pl_meter_begin(pl_meter *m, uint8_t type) {
    if (m->tx_from > 0) { /* what was sent makes room */
        for (uint32_t k = m->tx_from; k < m->tx_to; k++) {
            m->tx[k - m->tx_from] = m->tx[k];
        }
        m->tx_to = (uint8_t)(m->tx_to - m->tx_from);
        m->tx_from = 0;
    }
    m->tx_begin = m->tx_to;
    m->tx_full = 0;
    m->tx_room = type == TEXT ? 1 + 128 : type == FAULT ? 3 + 64 : 249;
    m->crc = 0xFFFFFFFFu;
    raw(m, 0); /* half a frame before it, or noise, ends here */
    m->tx_code = m->tx_to;
    raw(m, 0);
    body_byte(m, type);
}

void pl_meter_put(pl_meter *m, uint64_t value, uint32_t n_bytes) {
    for (; n_bytes > 0; n_bytes--, value >>= 8) {
        body_byte(m, (uint8_t)value);
    }
}

void pl_meter_put_text(pl_meter *m, const char *text) {
    for (; *text != '\0'; text++) {
        body_byte(m, (uint8_t)*text);
    }
}

void pl_meter_put_number(pl_meter *m, uint32_t value) {
    uint32_t unit = 1;
    while (value / unit >= 10) {
        unit *= 10;
    }
    for (; unit > 0; unit /= 10) {
        body_byte(m, (uint8_t)('0' + value / unit % 10));
    }
}

bool pl_meter_end(pl_meter *m) {
    uint32_t crc = ~m->crc;
    for (unsigned k = 0; k < 4; k++, crc >>= 8) {
        stuff(m, (uint8_t)crc);
    }
    if (!m->tx_full) {
        m->tx[m->tx_code] = (uint8_t)(m->tx_to - m->tx_code);
    }
    raw(m, 0);
    if (m->tx_full) { /* the line is slower than we speak, or nobody takes anything */
        m->tx_to = m->tx_begin;
    }
    return !m->tx_full;
}

void pl_meter_flush(pl_meter *m) {
    if (m->tx_from < m->tx_to) {
        size_t n = (size_t)(m->tx_to - m->tx_from), taken = m->hal->uart_write(m->hal->port, m->tx + m->tx_from, n);
        m->tx_from = (uint8_t)(m->tx_from + (taken < n ? taken : n));
    }
}

/* Listening ---- */

/* Undo COBS and the CRC of rx[n] in place. Returns the length of the body; 0: it is damaged. */
static uint32_t unstuff(pl_meter *m, uint32_t n) {
    uint32_t length = 0;
    for (uint32_t at = 0; at < n;) {
        uint32_t end = at + m->rx[at];
        if (end > n) {
            return 0;
        }
        if (at > 0) {
            m->rx[length++] = 0;
        }
        for (at++; at < end; at++) {
            m->rx[length++] = m->rx[at];
        }
    }
    if (length < 5) {
        return 0;
    }
    uint32_t crc = 0xFFFFFFFFu;
    for (uint32_t k = 0; k < length; k++) {
        crc = pl_meter_crc(crc, m->rx[k]);
    }
    return crc == 0xDEBB20E3u ? length - 4 : 0; /* what a body and its own CRC always come to */
}

uint32_t pl_meter_hear(pl_meter *m, uint8_t byte) {
    if (byte != 0) {
        if (m->rx_n < PL_METER_RX) {
            m->rx[m->rx_n] = byte;
        }
        m->rx_n = (uint8_t)(m->rx_n <= PL_METER_RX ? m->rx_n + 1 : m->rx_n);
        return 0;
    }
    uint32_t n = m->rx_n;
    m->rx_n = 0;
    return n > 0 && n <= PL_METER_RX ? unstuff(m, n) : 0;
}
