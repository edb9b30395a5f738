;;; qwen-companion-context-test.el --- Tests of what is reported  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'dired)
(require 'qwen-companion-test-helper)

(defun qwen-companion-context-test--look-at (file)
  "Visit FILE in the selected window as a user does; return its buffer."
  (switch-to-buffer (find-file-noselect file)))

(defun qwen-companion-context-test--last ()
  "Return the newest context that was sent, after a snapshot."
  (qwen-companion-context--update)
  (car (last (qwen-companion-test-sent 'context))))

(ert-deftest qwen-companion-context-test-positions ()
  "Lines count in the whole buffer, columns in UTF-16 units from 1."
  (pcase-dolist (`(,text ,search ,line ,character)
                 '(("abc" "" 1 1)
                   ("abc" "ab" 1 3)
                   ("one\ntwo" "one\n" 2 1)
                   ("\tx = 1" "\t" 1 2)
                   ("😀日本x" "😀" 1 3)
                   ("😀日本x" "😀日本" 1 5)
                   ("é̂x" "é̂" 1 3)
                   ("a\n😀😀b" "a\n😀😀" 2 5)))
    (with-temp-buffer
      (insert text)
      (goto-char (point-min))
      (search-forward search)
      (should (equal (list text line character)
                     (list text
                           (qwen-companion-context-line (point))
                           (qwen-companion-context-character (point))))))))

(ert-deftest qwen-companion-context-test-narrowing-does-not-count ()
  (with-temp-buffer
    (insert "one\ntwo\n  three\n")
    (goto-char (point-min))
    (search-forward "th")
    (narrow-to-region (1- (point)) (point-max))
    (should (= 3 (qwen-companion-context-line (point))))
    (should (= 5 (qwen-companion-context-character (point))))))

(ert-deftest qwen-companion-context-test-active-file-and-cursor ()
  (qwen-companion-test-with-files '(("a.txt" "one\ntwo\n") ("b.txt" "b\n"))
    (qwen-companion-test-with-backend
      (save-window-excursion
        (qwen-companion-context-test--look-at "b.txt")
        (qwen-companion-context-test--last)
        (qwen-companion-context-test--look-at "a.txt")
        (goto-char (point-min))
        (search-forward "tw")
        (let ((sent (qwen-companion-context-test--last)))
          (should (equal (expand-file-name "a.txt") (plist-get sent :active)))
          (should (= 2 (plist-get sent :line)))
          (should (= 3 (plist-get sent :character)))
          (should-not (plist-get sent :text))
          (should (equal (list (expand-file-name "a.txt")
                               (expand-file-name "b.txt"))
                         (mapcar (lambda (file) (plist-get file :path))
                                 (plist-get sent :files))))
          (should (apply #'>= (mapcar (lambda (file) (plist-get file :timestamp))
                                      (plist-get sent :files)))))))))

(ert-deftest qwen-companion-context-test-unchanged-is-not-sent-twice ()
  (qwen-companion-test-with-files '(("a.txt" "one\ntwo\n"))
    (qwen-companion-test-with-backend
      (save-window-excursion
        (qwen-companion-context-test--look-at "a.txt")
        (dotimes (_ 3)
          (qwen-companion-context--update))
        (should (= 1 (length (qwen-companion-test-sent 'context))))
        (forward-char)
        (qwen-companion-context--update)
        (should (= 2 (length (qwen-companion-test-sent 'context))))))))

(ert-deftest qwen-companion-context-test-selection-survives-the-terminal ()
  "The selection stays when another window is selected, until it ends."
  (qwen-companion-test-with-files '(("a.txt" "one\ntwo\n"))
    (qwen-companion-test-with-backend
      (save-window-excursion
        (let ((transient-mark-mode t)
              (buffer (qwen-companion-context-test--look-at "a.txt")))
          (goto-char (point-min))
          (push-mark (point) t t)
          (forward-char 3)
          (should (equal "one" (plist-get (qwen-companion-context-test--last) :text)))
          (switch-to-buffer (get-buffer-create "*terminal*"))
          (qwen-companion-context--update)
          (should (equal "one" (plist-get (qwen-companion-context-payload) :text)))
          (should (equal (expand-file-name "a.txt")
                         (plist-get (qwen-companion-context-payload) :active)))
          (with-current-buffer buffer (deactivate-mark))
          (should-not (plist-get (qwen-companion-context-test--last) :text)))))))

(ert-deftest qwen-companion-context-test-selection-is-cut-and-plain ()
  (qwen-companion-test-with-files
      `(("a.txt" ,(make-string 20000 ?x)))
    (qwen-companion-test-with-backend
      (save-window-excursion
        (let ((transient-mark-mode t))
          (qwen-companion-context-test--look-at "a.txt")
          (put-text-property 1 20 'face 'bold)
          (goto-char (point-min))
          (push-mark (point) t t)
          (goto-char (point-max))
          (let ((text (plist-get (qwen-companion-context-test--last) :text)))
            (should (= 16384 (length text)))
            (should-not (text-properties-at 0 text))))))))

(ert-deftest qwen-companion-context-test-indirect-buffer-is-its-base ()
  (qwen-companion-test-with-files '(("a.txt" "one\ntwo\n"))
    (qwen-companion-test-with-backend
      (save-window-excursion
        (let ((base (find-file-noselect "a.txt")))
          (switch-to-buffer (make-indirect-buffer base "indirect" t))
          (goto-char (point-max))
          (let ((sent (qwen-companion-context-test--last)))
            (should (equal (expand-file-name "a.txt") (plist-get sent :active)))
            (should (= 3 (plist-get sent :line)))))))))

(ert-deftest qwen-companion-context-test-no-frame-no-active-file ()
  (qwen-companion-test-with-files '(("a.txt" "one\n"))
    (qwen-companion-test-with-backend
      (save-window-excursion
        (qwen-companion-context-test--look-at "a.txt")
        (qwen-companion-context--update)
        (cl-letf (((symbol-function 'qwen-companion-context-frame-p) #'ignore))
          (should-not (plist-get (qwen-companion-context-payload) :active)))))))

(ert-deftest qwen-companion-context-test-closed-file-goes ()
  (qwen-companion-test-with-files '(("a.txt" "one\n") ("b.txt" "b\n"))
    (qwen-companion-test-with-backend
      (save-window-excursion
        (let ((remaining (expand-file-name "a.txt")))
          (qwen-companion-context-test--look-at "a.txt")
          (qwen-companion-context--update)
          (qwen-companion-context-test--look-at "b.txt")
          (qwen-companion-context--update)
          (kill-buffer "b.txt")
          (should (equal (list remaining)
                         (mapcar (lambda (file) (plist-get file :path))
                                 (plist-get (qwen-companion-context-payload)
                                            :files)))))))))

(ert-deftest qwen-companion-context-test-enable-disable-is-symmetric ()
  (let ((hooks (mapcar #'car qwen-companion-context--hooks))
        (idle (length timer-idle-list)))
    (let ((before (mapcar #'default-value hooks)))
      (qwen-companion-context-enable)
      (should (> (length timer-idle-list) idle))
      (qwen-companion-context-disable)
      (should (equal before (mapcar #'default-value hooks)))
      (should (= idle (length timer-idle-list))))))

(provide 'qwen-companion-context-test)
;;; qwen-companion-context-test.el ends here
