;;; ws-butler.el --- ws-butler everywhere  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: ws-butler

(require 'ws-butler)
(ws-butler-global-mode 1)

;;; ws-butler.el ends here
