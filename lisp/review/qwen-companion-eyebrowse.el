;;; qwen-companion-eyebrowse.el --- Layouts of Eyebrowse without a review  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Eyebrowse keeps the windows of each layout that is not on the screen.  When
;; a review in one of them ends, its buffers are killed, and Eyebrowse would
;; show *scratch* in their windows.  This file is loaded only for a frame that
;; has such layouts.

;;; Code:

(defun qwen-companion-eyebrowse-restore (frame buffers configuration)
  "Restore the layouts of FRAME that show one of BUFFERS.
Their windows become those of CONFIGURATION, a window configuration of
FRAME."
  (let ((names (mapcar #'buffer-name buffers)))
    (pcase-dolist (`(,_slot . ,layout) (frame-parameter frame 'eyebrowse-window-configs))
      (when (qwen-companion-eyebrowse--shows-p (car layout) names)
        (setcar layout (qwen-companion-eyebrowse--state frame configuration))))))

(defun qwen-companion-eyebrowse--shows-p (state names)
  "Return non-nil when a buffer with one of NAMES is in a window of STATE."
  (if (eq 'buffer (car-safe state))
      (member (car (cdr state)) names)
    (let (found)
      ;; Some lists in it are dotted.
      (while (and (consp state) (not found))
        (setq found (qwen-companion-eyebrowse--shows-p (pop state) names)))
      found)))

(defun qwen-companion-eyebrowse--state (frame configuration)
  "Return the window state of FRAME in CONFIGURATION, in the form of Eyebrowse."
  (let ((now (current-window-configuration frame)))
    (unwind-protect
        (progn
          (set-window-configuration configuration t t)
          (window-state-get (frame-root-window frame) t))
      (set-window-configuration now t t))))

(provide 'qwen-companion-eyebrowse)
;;; qwen-companion-eyebrowse.el ends here
