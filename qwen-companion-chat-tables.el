;;; qwen-companion-chat-tables.el --- Markdown's tables in a chat  -*- lexical-binding: t; -*-

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

;; A table of Markdown whose columns are below each other, however it was
;; written.  Only its looks change, by the space around the columns: what is
;; searched and copied is the text as it came.

;;; Code:

(require 'cl-lib)
(require 'subr-x)

(defconst qwen-companion-chat-tables--limit 200
  "Lines above which a table stays as it was written.
All of them are looked at whenever one more has come.")

(defconst qwen-companion-chat-tables--row "[ \t]*|"
  "What a line of a table begins with.")

(defconst qwen-companion-chat-tables--rule
  "[ \t]*|\\(?:[ \t]*:?-+:?[ \t]*|\\)*[ \t]*:?-+:?[ \t]*|?[ \t]*$"
  "The second line of a table, which says how its columns are aligned.")

(defun qwen-companion-chat-tables-extent ()
  "Return (START . END) of the table that the line at point is in, or nil.
Both are beginnings of lines."
  (when (qwen-companion-chat-tables--row-p)
    (save-excursion
      (let ((end (progn (while (and (qwen-companion-chat-tables--row-p)
                                    (zerop (forward-line))))
                        (point)))
            (lines 0))
        (forward-line -1)
        (while (and (qwen-companion-chat-tables--row-p)
                    (< (cl-incf lines) qwen-companion-chat-tables--limit)
                    (zerop (forward-line -1))))
        (unless (qwen-companion-chat-tables--row-p)
          (forward-line))
        (let ((start (point)))
          (forward-line)
          (and (< lines qwen-companion-chat-tables--limit)
               (looking-at qwen-companion-chat-tables--rule)
               ;; It has come to its end, and is not the beginning of a row.
               (get-text-property (match-end 0) 'qwen-companion-chat-voice)
               (cons start end)))))))

(defun qwen-companion-chat-tables--row-p ()
  "Return non-nil when the line at point may be of a table."
  (and (looking-at-p qwen-companion-chat-tables--row)
       (not (get-text-property (point) 'qwen-companion-chat-code))))

(defun qwen-companion-chat-tables--cells (end)
  "Return the cells of the row at point, whose line ends at END.
Each is (START . END) without the space around it."
  (let (cells)
    (while (and (eq ?| (char-after)) (< (point) end))
      (forward-char)
      (let ((start (point)))
        (while (progn (skip-chars-forward "^|\\\\" end)
                      ;; What follows a backslash separates nothing.
                      (and (eq ?\\ (char-after)) (< (1+ (point)) end)))
          (forward-char 2))
        (unless (and (= (point) end) (string-blank-p (buffer-substring start end)))
          (push (qwen-companion-chat-tables--trimmed start (point)) cells))))
    (nreverse cells)))

(defun qwen-companion-chat-tables--trimmed (start end)
  "Return (START . END) without the white space at both ends."
  (save-excursion
    (goto-char end)
    (skip-chars-backward " \t" start)
    (let ((end (point)))
      (goto-char start)
      (skip-chars-forward " \t" end)
      (cons (point) end))))

(defun qwen-companion-chat-tables--width (cell)
  "Return how many columns CELL takes."
  (string-width (buffer-substring-no-properties (car cell) (cdr cell))))

(defun qwen-companion-chat-tables-align (start end)
  "Align the columns of the table from START to END."
  (save-excursion
    (goto-char start)
    (let ((number 0) rows rule widths)
      (while (< (point) end)
        (let* ((from (progn (skip-chars-forward " \t") (point)))
               (to (line-end-position))
               (cells (qwen-companion-chat-tables--cells to)))
          (if (= 1 number)
              (setq rule cells)
            (cl-loop for cell in cells
                     for column from 0
                     do (setf (alist-get column widths)
                              (max (qwen-companion-chat-tables--width cell)
                                   (alist-get column widths 3)))))
          (push (list from to cells) rows)
          (cl-incf number))
        (forward-line))
      (remove-text-properties start end '(display nil))
      (pcase-dolist (`(,from ,to ,cells) rows)
        (add-face-text-property from to 'fixed-pitch t)
        (if (eq cells rule)
            (qwen-companion-chat-tables--draw
             from to
             (concat "|" (mapconcat (lambda (column)
                                      (make-string (+ 2 (alist-get column widths 3)) ?-))
                                    (number-sequence 0 (1- (length rule)))
                                    "|")
                     "|"))
          (qwen-companion-chat-tables--align-row from to cells widths rule))))))

(defun qwen-companion-chat-tables--right-p (rule)
  "Return non-nil when its cell RULE has a column right-aligned."
  (and rule
       (not (eq ?: (char-after (car rule))))
       (eq ?: (char-before (cdr rule)))))

(defun qwen-companion-chat-tables--align-row (from to cells widths rule)
  "Align CELLS of the line from FROM to TO, whose columns are of WIDTHS.
RULE has the cells that say how."
  ;; What is between two cells is drawn as one: it has a character at least.
  (let ((place from)
        (before "| "))
    (cl-loop for cell in cells
             for column from 0
             for room = (make-string (max 0 (- (alist-get column widths 3)
                                               (qwen-companion-chat-tables--width cell)))
                                     ?\s)
             for right = (qwen-companion-chat-tables--right-p (nth column rule))
             do (qwen-companion-chat-tables--draw place (car cell)
                                                  (concat before (if right room "")))
             (setq place (cdr cell)
                   before (concat (if right "" room) " | ")))
    (qwen-companion-chat-tables--draw place to (string-trim-right before))))

(defun qwen-companion-chat-tables--draw (start end text)
  "Show TEXT in place of what is from START to END, if that is anything."
  (when (< start end)
    (put-text-property start end 'display text)))

(provide 'qwen-companion-chat-tables)
;;; qwen-companion-chat-tables.el ends here
