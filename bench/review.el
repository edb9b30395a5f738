;;; review.el --- What a review costs, ours beside Emacs's own  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make bench'.  Shows, for proposals of several sizes, how long each step
;; blocks Emacs: what we do, and what inserting the text and Ediff cost by
;; themselves in the same run.  The ratio is what can be compared between
;; machines; the milliseconds are this one's.

;;; Code:

(require 'cl-lib)
(require 'measure)
(require 'qwen-companion)

(defun review-bench--text (lines line-end)
  "Return a text of LINES lines of 50 bytes, each ending in LINE-END."
  (mapconcat (lambda (number) (format "%06d %s%s" number (make-string 42 ?x) line-end))
             (number-sequence 1 lines) ""))

(defun review-bench--propose (path file kind)
  "Let a CLI propose for PATH the text in FILE; return the proposal.
KIND, a string, says what text it is, see `qwen-companion-spool-insert'.
Nothing opens by itself."
  (let ((copy (make-temp-file (expand-file-name kind (qwen-companion-backend-spool)))))
    (copy-file file copy t)
    (qwen-companion-proposal-on-open
     (list :id (symbol-name (gensym)) :session "s" :client "bench" :path path
           :text-file copy))
    (car (last (qwen-companion-proposals)))))

(defun review-bench--cycle (path file kind)
  "Return what one review of the text in FILE, which is KIND, for PATH takes.
A list of milliseconds: inserting the text, arrival, preparing both
sides, accepting, and Ediff's session."
  (let* ((insert (measure-ms
                  (lambda ()
                    (with-temp-buffer
                      (let ((coding-system-for-read 'utf-8-unix))
                        (insert-file-contents file))))))
         proposal
         (arrival (measure-ms
                   (lambda () (setq proposal (review-bench--propose path file kind)))))
         (prepare (measure-ms
                   (lambda () (qwen-companion-review--prepare proposal))))
         (ediff (measure-ms
                 (lambda ()
                   (qwen-companion-review-show 'ediff proposal nil)
                   (qwen-companion-review-hide 'ediff proposal))))
         (accept (measure-ms
                  (lambda () (qwen-companion-diff-accept proposal)))))
    (list insert arrival prepare accept ediff)))

(defun review-bench--report (what lines line-end)
  "Measure a proposal of LINES lines with LINE-END and print a row for WHAT."
  (let ((path (expand-file-name "bench.txt" (make-temp-file "review-bench-" t)))
        (file (make-temp-file "review-bench-"))
        (kind (if (equal line-end "\n") "ascii-" "ascii-crlf-"))
        (text (review-bench--text lines line-end)))
    (let ((coding-system-for-write 'utf-8-unix))
      (write-region text nil path nil 'silent)
      (write-region (concat text "more" line-end) nil file nil 'silent))
    (pcase-let* ((cycles (cl-loop repeat measure-rounds
                                  collect (review-bench--cycle path file kind)))
                 (`(,insert ,arrival ,prepare ,accept ,ediff)
                  (measure-medians cycles)))
      (princ (format "%-14s %8.1f %8.1f %8.1f %8.1f %8.1f %12.2f %12.2f\n"
                     what insert arrival prepare accept ediff
                     (/ arrival insert)
                     (/ (+ arrival prepare accept) ediff))))
    (delete-directory (file-name-directory path) t)
    (delete-file file)))

(let ((qwen-companion-diff-arrival 'command)
      (qwen-companion-backend--server
       (qwen-companion-backend--make-server
        :spool (file-name-as-directory (make-temp-file "review-bench-" t))))
      (inhibit-message t))
  (cl-letf (((symbol-function 'qwen-companion-backend-call) #'always))
    (unwind-protect
        (progn
          (princ (format "%-14s %8s %8s %8s %8s %8s %12s %12s\n" "milliseconds"
                         "insert" "arrival" "prepare" "accept" "ediff"
                         "arrival/ins." "ours/ediff"))
          (review-bench--report "64 KB" 1300 "\n")
          (review-bench--report "1 MB" 20000 "\n")
          (review-bench--report "10 MB" 200000 "\n")
          (review-bench--report "10 MB, CR LF" 200000 "\r\n")
          ;; Just below the size limit.
          (review-bench--report "20 MB" 390000 "\n")
          (review-bench--report "20 MB, CR LF" 390000 "\r\n"))
      (qwen-companion-proposal-end-all)
      (qwen-companion-disk-forget-all)
      (delete-directory (qwen-companion-backend-spool) t))))

;;; review.el ends here
