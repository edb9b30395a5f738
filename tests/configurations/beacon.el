;;; beacon.el --- Beacon and dimmer  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: beacon dimmer

(require 'beacon)
(require 'dimmer)
(beacon-mode 1)
(dimmer-mode 1)

;;; beacon.el ends here
