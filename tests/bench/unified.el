;;; unified.el --- What a review hunk by hunk costs  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make bench'.  Shows how long each step of a review hunk by hunk blocks
;; Emacs: taking over the answer of the comparison and showing the first
;; hunks, dropping the last change and bringing it back, moving to the next
;; hunk; and beside it `diff-mode' with the output of diff, and Ediff, on the
;; same texts in the same run.  Counted is the time of the processor, without
;; collecting garbage, which depends on all buffers there are, and without
;; the programs that compare.  Taking over and dropping should be below
;; 150 ms for the texts of 10 MB, the last three.

;;; Code:

(require 'cl-lib)
(require 'diff-mode)
(require 'qwen-companion)

(defun unified-bench--time (function)
  "Return the milliseconds that FUNCTION takes of the processor."
  (garbage-collect)
  (let ((gc-cons-threshold most-positive-fixnum)
        (start (float-time (get-internal-run-time))))
    (funcall function)
    (* 1000 (- (float-time (get-internal-run-time)) start))))

(defun unified-bench--text (lines every)
  "Return a text of LINES lines of 50 bytes; every EVERYth is different."
  (mapconcat (lambda (number)
               (format "%06d %s\n" number
                       (make-string 42 (if (zerop (% number every)) ?y ?x))))
             (number-sequence 1 lines) ""))

(defun unified-bench--hunks (lines every)
  "Return what comparing finds between two such texts of LINES and EVERY.
The old text has no different lines."
  (if (= every 1)
      (list (list 1 lines 1 lines))
    (cl-loop for line from every to lines by every
             collect (list line 1 line 1))))

(defun unified-bench--diff-mode (old new)
  "Return the milliseconds for `diff-mode' on the files OLD and NEW."
  (let ((patch (make-temp-file "unified-bench-")))
    (call-process-shell-command
     (format "diff -u %s %s > %s" old new patch))
    (prog1 (unified-bench--time
            (lambda ()
              (with-temp-buffer
                (insert-file-contents patch)
                (diff-mode)
                (font-lock-ensure (point-min) (min (point-max) 4000)))))
      (delete-file patch))))

(defun unified-bench--report (what lines every)
  "Measure a proposal for LINES lines, each EVERYth changed; print it as WHAT."
  (let* ((old (make-temp-file "unified-bench-" nil ".txt"))
         (new (make-temp-file "unified-bench-"))
         (text (unified-bench--text lines every))
         (hunks (unified-bench--hunks lines every))
         answer proposal)
    (write-region (unified-bench--text lines (1+ lines)) nil old nil 0)
    (write-region text nil new nil 0)
    (cl-letf (((symbol-function 'qwen-companion-merge-compare)
               (lambda (_old _new callback)
                 (setq answer (lambda () (funcall callback hunks))))))
      (qwen-companion-proposal-on-open
       (list :id (symbol-name (gensym)) :session "s" :client "bench" :path old
             :text text))
      (setq proposal (car (qwen-companion-proposals)))
      (qwen-companion-review--prepare proposal)
      (setf (qwen-companion-proposal-style proposal) 'unified
            (qwen-companion-proposal-state proposal) 'shown)
      (let* ((open (unified-bench--time
                    (lambda () (qwen-companion-review-show 'unified proposal t))))
             (show (unified-bench--time answer)))
        (set-buffer (qwen-companion-review-windows-control proposal))
        (let* ((difference (qwen-companion-review-unified--difference))
               (first (unified-bench--time #'qwen-companion-unified-drop))
               (again (unified-bench--time #'qwen-companion-unified-restore))
               (hunk (car (last qwen-companion-review-unified--hunks)))
               (last (unified-bench--time
                      (lambda ()
                        (qwen-companion-hunks-drop difference hunk))))
               (colour (unified-bench--time
                        (lambda ()
                          (qwen-companion-hunks-view-fontify
                           (point-min) (min (point-max) 4000))))))
          (qwen-companion-review-hide 'unified proposal)
          ;; The program diff takes minutes where no line is the same, and
          ;; Ediff where there are many changes.
          (let ((mode (and (> every 1) (unified-bench--diff-mode old new)))
                (ediff (and (> every 1) (< (length hunks) 500)
                            (unified-bench--time
                             (lambda ()
                               (qwen-companion-review-show 'ediff proposal nil)
                               (qwen-companion-review-hide 'ediff proposal))))))
            (princ (format "%-26s %6.1f %6.1f %6.1f %6.1f %6.1f %6.1f %9s %8s %8s\n"
                           what open show first again last colour
                           (if mode (format "%.1f" mode) "")
                           (if ediff (format "%.1f" ediff) "")
                           (if mode (format "%.2f" (/ (+ open show colour) mode))
                             "")))))))
    (qwen-companion-proposal-end-all)
    (delete-file old)
    (delete-file new)))

(let ((qwen-companion-diff-arrival 'command)
      (qwen-companion-backend--server
       (qwen-companion-backend--make-server
        :spool (file-name-as-directory (make-temp-file "unified-bench-" t))))
      (inhibit-message t))
  (cl-letf (((symbol-function 'qwen-companion-backend-call) #'always))
    (unwind-protect
        (progn
          (princ (format "\n%-26s %6s %6s %6s %6s %6s %6s %9s %8s %8s\n" "hunk by hunk, milliseconds"
                         "open" "show" "drop" "back" "last" "colour" "diff-mode" "ediff"
                         "ours/d.m"))
          (unified-bench--report "1,000 lines, 20 changes" 1000 50)
          (unified-bench--report "20,000 lines, 400 changes" 20000 50)
          (unified-bench--report "200,000 lines, 10 changes" 200000 20000)
          (unified-bench--report "200,000 lines, 20,000 ch." 200000 10)
          (unified-bench--report "200,000 lines, all changed" 200000 1))
      (qwen-companion-proposal-end-all)
      (delete-directory (qwen-companion-backend-spool) t))))

;;; unified.el ends here
