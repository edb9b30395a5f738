;;; qwen-companion-terminal-eat.el --- CLIs in Eat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; The terminal emulator Eat, a package in Emacs Lisp.  It is required when a
;; CLI is started in it.

;;; Code:

(require 'qwen-companion-terminal)

(declare-function eat-exec "ext:eat" (buffer name command startfile switches))
(declare-function eat-mode "ext:eat" ())
(declare-function eat-term-send-string "ext:eat" (terminal string))
(declare-function eat-term-send-string-as-yank "ext:eat" (terminal args))
(defvar eat-terminal)

(cl-defmethod qwen-companion-terminal-start ((_kind (eql eat)) buffer command)
  "Run COMMAND in Eat in BUFFER."
  (require 'eat)
  (qwen-companion-terminal-show buffer)
  (eat-mode)
  (eat-exec buffer (buffer-name buffer) (car command) nil (cdr command)))

(cl-defmethod qwen-companion-terminal-paste ((_kind (eql eat)) text)
  "Paste TEXT into the Eat terminal of the current buffer."
  (eat-term-send-string-as-yank eat-terminal (list text)))

(cl-defmethod qwen-companion-terminal-return ((_kind (eql eat)))
  "Press return in the Eat terminal of the current buffer."
  (eat-term-send-string eat-terminal "\r"))

(provide 'qwen-companion-terminal-eat)
;;; qwen-companion-terminal-eat.el ends here
