;;; qwen-companion-visible.el --- Update a buffer while a window shows it  -*- lexical-binding: t; -*-

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

;; A list of running things has ages in it, which change by themselves.  It is
;; updated by a timer that runs only while the list is in a window.

;;; Code:

(defvar-local qwen-companion-visible--function nil
  "Function that updates the current buffer.")
(defvar-local qwen-companion-visible--seconds nil
  "Seconds between two updates of the current buffer.")
(defvar-local qwen-companion-visible--timer nil
  "Timer that updates the current buffer, nil while it is not visible.")

(defun qwen-companion-visible-keep-updated (function seconds)
  "Call FUNCTION in the current buffer while it is in a window.
It is called without arguments when a window begins to show the buffer,
and every SECONDS from then on.  To be called by a major mode."
  (setq qwen-companion-visible--function function
        qwen-companion-visible--seconds seconds)
  (add-hook 'window-buffer-change-functions #'qwen-companion-visible--shown nil t)
  (add-hook 'change-major-mode-hook #'qwen-companion-visible--stop nil t)
  (add-hook 'kill-buffer-hook #'qwen-companion-visible--stop nil t))

(defun qwen-companion-visible-window ()
  "Return a window of the current buffer, or nil.
That of an iconified frame counts: nothing is run when it comes back."
  (get-buffer-window (current-buffer) 0))

(defun qwen-companion-visible-update ()
  "Update the current buffer now if it is in a window, else stop doing so."
  (if (not (qwen-companion-visible-window))
      (qwen-companion-visible--stop)
    (unless qwen-companion-visible--timer
      (setq qwen-companion-visible--timer
            (run-at-time qwen-companion-visible--seconds
                         qwen-companion-visible--seconds
                         #'qwen-companion-visible--tick (current-buffer))))
    (funcall qwen-companion-visible--function)))

(defun qwen-companion-visible-revert ()
  "Revert the current buffer in its window, where point stays on its line."
  (with-selected-window (qwen-companion-visible-window)
    (revert-buffer)))

(defun qwen-companion-visible--shown (window)
  "Update the buffer of WINDOW, which has begun to show it."
  (qwen-companion-visible--tick (window-buffer window)))

(defun qwen-companion-visible--tick (buffer)
  "Update BUFFER if it is alive."
  (when (buffer-live-p buffer)
    (with-current-buffer buffer
      (qwen-companion-visible-update))))

(defun qwen-companion-visible--stop ()
  "Stop the timer of the current buffer."
  (when qwen-companion-visible--timer
    (cancel-timer qwen-companion-visible--timer)
    (setq qwen-companion-visible--timer nil)))

(provide 'qwen-companion-visible)
;;; qwen-companion-visible.el ends here
