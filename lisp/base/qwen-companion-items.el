;;; qwen-companion-items.el --- Live buffers made of keyed items  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A buffer made of items, each with a key that outlives a redraw, can be
;; redrawn in such a way that point, the mark and the windows stay at their
;; items.

;;; Code:

(require 'cl-lib)
(require 'subr-x)

(defun qwen-companion-items-redraw (items function)
  "Call FUNCTION, which redraws the current buffer, and keep all places.
ITEMS is a function that returns the items in the buffer in order, each
\(KEY START . END).  It is called before and after FUNCTION.  Point, the
mark and the windows stay at the lines and columns of their items, or
near to where an item was that has gone."
  (let* ((before (funcall items))
         (place (lambda (position)
                  (qwen-companion-items--place position before)))
         (point (funcall place (point)))
         (mark (and (mark t) (funcall place (mark t))))
         (windows (mapcar (lambda (window)
                            (list window
                                  (funcall place (window-point window))
                                  ;; The top stays the top.
                                  (and (< (point-min) (window-start window))
                                       (funcall place (window-start window)))))
                          (get-buffer-window-list nil nil t))))
    (funcall function)
    (let* ((after (funcall items))
           (position (lambda (place)
                       (qwen-companion-items--position place before after))))
      (goto-char (funcall position point))
      (when mark
        (set-marker (mark-marker) (funcall position mark)))
      (pcase-dolist (`(,window ,point ,start) windows)
        (set-window-point window (funcall position point))
        (set-window-start window (funcall position start) t)))))

(defun qwen-companion-items--place (position items)
  "Return the place of POSITION among ITEMS as (KEY LINES COLUMN), or nil."
  (when-let* ((item (or (cl-find-if (lambda (item) (< position (cddr item))) items)
                        (car (last items)))))
    (save-excursion
      (goto-char position)
      (list (car item)
            (count-lines (cadr item) (line-beginning-position))
            (current-column)))))

(defun qwen-companion-items--position (place before after)
  "Return the position of PLACE among the items AFTER; that of nil is the top.
If its item has gone, that is the nearest one that was among BEFORE."
  (pcase-let* ((`(,key ,lines ,column) place)
               (`(,_ ,start . ,end) (assoc key after)))
    (cond
     ((null key) (point-min))
     (start
      (save-excursion
        (goto-char start)
        (forward-line lines)
        (when (>= (point) end)
          (goto-char (max start (1- end)))
          (forward-line 0))
        (move-to-column column)
        (point)))
     (t
      (let* ((keys (mapcar #'car before))
             (rest (member key keys)))
        (or (cl-some (lambda (key) (cadr (assoc key after)))
                     (append (reverse (butlast keys (length rest))) rest))
            (point-min)))))))

(provide 'qwen-companion-items)
;;; qwen-companion-items.el ends here
